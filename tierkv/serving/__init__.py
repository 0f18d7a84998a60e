"""The reference engine behind the OpenAI API: `server` takes requests, `schema` checks them, `reply` shapes what is answered."""
