"use strict";
Redoc.init("/openapi.json", { hideDownloadButton: false }, document.getElementById("page"));
