package httpapi

import (
	"io"
	"net/http"
	"time"
)

// readTime is less than a request's time with the stores, which runs meanwhile.
const readTime = 6 * time.Second

// writeTime is for the answer alone, of a request that took its whole time.
const writeTime = 20 * time.Second

// NewServer bounds what a connection may cost: a slow or idle peer is cut off,
// a header block ends at 32 KB. Shutdown lets requests in flight finish: none
// takes longer than its deadline and the time to write.
func NewServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:                      handler,
		ReadHeaderTimeout:            readTime, // at the same instant: the server sets one deadline
		ReadTimeout:                  readTime,
		WriteTimeout:                 30 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               32 << 10,
		DisableGeneralOptionsHandler: true, // OPTIONS * needs a key like everything else
	}
}

// Ops is the handler of the operators' own listener: /healthz is 200 while the
// process serves, /readyz once ready returns nil, /metrics what was counted.
func Ops(ready func() error, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		plain(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

func plain(w http.ResponseWriter, status int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, line+"\n") // the peer may be gone
}
