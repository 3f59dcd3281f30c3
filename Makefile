# Names for what is in script/.
.PHONY: setup test demo fmt

setup test demo:
	@script/$@

fmt:
	@cargo fmt
