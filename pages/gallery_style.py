"""The look of the gallery's page, light and dark. It loads nothing from other addresses, not even a font."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark}
body{margin:0;font:16px/1.5 -apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif;color:#1f2328;background:#fff}
nav{position:fixed;top:0;bottom:0;width:13em;overflow-y:auto;border-right:1px solid #d0d7de;font-size:14px}
nav ul{list-style:none;margin:1em;padding:0}
main{margin-left:14em;padding:0 2em 4em;max-width:860px}
a{color:#0969da;text-decoration:none}
a:hover{text-decoration:underline}
section{border-top:1px solid #d0d7de;margin-top:3em}
img{max-width:100%;height:auto}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13px}
pre{background:#f6f8fa;padding:1em;overflow-x:auto;user-select:all}
table{border-collapse:collapse;margin:1em 0;font-size:14px}
td,th{border:1px solid #d0d7de;padding:.3em .6em;text-align:left;vertical-align:top}
.figures td,.figures th{white-space:nowrap}
.wide{overflow-x:auto}
.paper{color:#57606a}
@media (max-width:800px){
nav{position:static;width:auto;border:0}
nav li{display:inline-block;margin-right:1em}
main{margin:0;padding:0 1em}
.picture img{max-width:none}
.parts table{min-width:40rem}
}
@media (prefers-color-scheme:dark){
body{color:#e6edf3;background:#0d1117}
a{color:#6cb6ff}
nav,section,td,th{border-color:#30363d}
pre{background:#161b22}
.paper{color:#9da7b3}
}
"""
