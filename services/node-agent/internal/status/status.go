// Package status has the handler of the agent's status port (15020) for /healthz/ready. Package app registers it beside
// those of packages metrics and appprobe.
package status

import (
	"context"
	"io"
	"net/http"
	"time"
)

const checkTimeout = 2 * time.Second

// Ready answers 200 when check passes and 503 with its error otherwise.
func Ready(check func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(ctx); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "not ready: "+err.Error()+"\n")
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
}
