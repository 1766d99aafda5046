python -m venv .venv && . .venv/bin/activate
pip install -c constraints.txt -e '.[all-cpu,dev]'
