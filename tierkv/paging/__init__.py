"""What an engine needs around a `tierkv.pages.PageStore`: pages ahead of need (`supply`), calls that no step waits for (`courier`), and
pages of its own where there is no daemon (`private_pages`). Knows neither torch nor a model; the reference engine is built on it.
"""
