// Package servicetest runs a service in the process of its test, until the test ends. What it talks to is for package
// rpctest.
package servicetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
)

// Deps are those of a service under test: its log is the test's, and nobody else's metrics are in its registry.
func Deps(t testing.TB) service.Deps {
	t.Helper()
	return service.Deps{Log: testkit.Logger(t), Registry: prometheus.NewRegistry()}
}

// Service is what a service's function Open returns.
type Service interface {
	service.Runner
	Addr(flag string) net.Addr
}

// Running is a service that runs.
type Running struct {
	// Stop ends the service, waits for that, and fails the test if the service did not end well. The end of the test
	// calls it too.
	Stop func()

	t       testing.TB
	service Service
}

// Start opens a service and runs it until the test ends.
func Start[O, D any, S Service](t testing.TB, open func(context.Context, O, D) (S, error), options O, deps D) (S, *Running) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background()) // the service ends after what uses the test's context
	s, err := open(ctx, options, deps)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	stop := testkit.Background(t, s.Run)
	r := &Running{t: t, service: s, Stop: sync.OnceFunc(func() {
		t.Helper()
		stop()
		cancel()
	})}
	t.Cleanup(r.Stop)
	return s, r
}

// Address is that of the port of a flag.
func (r *Running) Address(flag string) string { return r.service.Addr(flag).String() }

// Get reads a page of the port for operators, with a token if it is not empty.
func (r *Running) Get(path, token string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Address("ops-address")+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, string(raw), err
}

// WaitReady waits until the service says that it is ready.
func (r *Running) WaitReady() {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		code, body, err := r.Get("/readyz", "")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz: %d %s", code, body)
		}
		return err
	})
}
