package app

import (
	"context"
	"net/http"

	"fairlead.dev/pkg/ops"
)

// orders are what another container of the Pod may tell the agent to do through port 15020, as it may tell Istio's.
type orders struct {
	// skipDrain makes quit end the proxy at once.
	skipDrain func()
	// drain begins a drain while the proxy goes on running.
	drain func(context.Context) error
	// quit ends the agent, with exit code 0.
	quit context.CancelFunc
}

// takeOrders adds the pages: /quitquitquit, by which the container of a Job ends the Pod's proxy once it is done, and
// /drain, which the preStop hook of a native sidecar calls.
func takeOrders(s *ops.Server, o orders) {
	s.Order("/quitquitquit", "ends the proxy at once (POST)", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		o.skipDrain()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // before the agent ends
		o.quit()
	}))
	s.Order("/drain", "takes the proxy out of service, which goes on running (POST)", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := o.drain(r.Context()); err != nil {
			http.Error(w, "the drain could not begin: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusOK)
	}))
}
