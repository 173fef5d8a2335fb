package app

import (
	"context"
	"net/http"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/ops"
)

// renewEvery is the shortest time between two orders to renew the certificate: each costs the ca a signature, and
// containers that do not hold the workload's key may give them.
const renewEvery = time.Second

// orders are what another container of the Pod may tell the agent to do through port 15020, as it may tell Istio's.
type orders struct {
	// skipDrain makes quit end the proxy at once.
	skipDrain func()
	// drain begins a drain while the proxy goes on running.
	drain func(context.Context) error
	// quit ends the agent, with exit code 0.
	quit context.CancelFunc
	// renew requests a new certificate.
	renew func()
}

// takeOrders adds the pages: /quitquitquit, by which the container of a Job ends the Pod's proxy once it is done,
// /drain, which the preStop hook of a native sidecar calls, and /renew, which `fairlead proxy renew` calls.
func takeOrders(s *ops.Server, o orders) {
	s.Order("/quitquitquit", "ends the proxy at once (POST)", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		o.skipDrain()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // before the agent ends
		o.quit()
	}))
	s.Order("/drain", "takes the proxy out of service, which goes on running (POST)",
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := o.drain(r.Context()); err != nil {
				http.Error(w, "the drain could not begin: "+err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusOK)
		}))
	s.Order("/renew", "renews the certificate now (POST)", renewals(o.renew, clock.Real()))
}

// renewals answers orders to renew, at most one in renewEvery.
func renewals(renew func(), c clock.Clock) http.Handler {
	var mu sync.Mutex
	var next time.Time
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		now := c.Now()
		if now.Before(next) {
			http.Error(w, "a certificate was requested less than "+renewEvery.String()+" ago; try again", http.StatusTooManyRequests)
			return
		}
		next = now.Add(renewEvery)
		renew()
		w.WriteHeader(http.StatusOK)
	})
}
