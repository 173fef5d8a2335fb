package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"no service":         {},
		"unknown service":    {"orders"},
		"unknown flag":       {"details", "--colour", "red"},
		"superfluous word":   {"details", "now"},
		"unknown version":    {"reviews", "--version", "v9"},
		"details calls none": {"details", "--ratings-url", "http://ratings"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(func(string) string { return "" })
			cmd.SetArgs(args)
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, errUsage) {
				t.Errorf("error %v is none of usage", err)
			}
		})
	}
}

func TestListenAddress(t *testing.T) {
	for _, c := range []struct{ host, port, want string }{
		{"", "", ":9080"},
		{"", "41234", "127.0.0.1:41234"},
		{"127.66.1.5", "9080", "127.66.1.5:9080"},
	} {
		if got := defaultListen(c.host, c.port); got != c.want {
			t.Errorf("HOST=%q PORT=%q: %q, want %q", c.host, c.port, got, c.want)
		}
	}
}

func TestPodName(t *testing.T) {
	if got := podName(func(string) string { return "reviews-v1-0" }); got != "reviews-v1-0" {
		t.Errorf("pod %q", got)
	}
	if got := podName(func(string) string { return "" }); got == "" {
		t.Error("no pod name without POD_NAME")
	}
}

// TestShutdownFinishesRequests: a request that is running when the server is stopped gets its answer.
func TestShutdownFinishesRequests(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		w.WriteHeader(http.StatusTeapot)
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	go func() { done <- serve(ctx, log, lis, 10*time.Second, handler) }()

	answered := make(chan int, 1)
	go func() {
		res, err := http.Get("http://" + lis.Addr().String())
		if err != nil {
			answered <- 0
			return
		}
		res.Body.Close()
		answered <- res.StatusCode
	}()
	<-started
	stop()
	close(release)
	if got := <-answered; got != http.StatusTeapot {
		t.Errorf("the request under way got %d", got)
	}
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestListenFailure(t *testing.T) {
	cmd := command(func(string) string { return "" })
	cmd.SetArgs([]string{"details", "--listen", "127.0.0.1:no-such-port"})
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err == nil || errors.Is(err, errUsage) {
		t.Errorf("an address that does not exist gives %v", err)
	}
}
