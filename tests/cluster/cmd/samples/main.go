// Command samples is what Istio's samples helloworld and curl run, in images of their names: the program is what its
// name says.
//
//	helloworld -version v1   answers /hello at port 5000 as Istio's helloworld does
//	helloworld -tell fail    has the one that runs in the same Pod answer 503 from now on; -tell mend ends that
//	curl [-sS] [-X METHOD] URL   sends one request, prints the answer, and fails unless there is one
//	sleep infinity           waits until it is asked to end
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string, args []string) error {
	switch name {
	case "sleep":
		<-ctx.Done()
		return nil
	case "curl":
		return curl(ctx, args)
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	version := flags.String("version", "", "what answers call the version")
	tell := flags.String("tell", "", "fail or mend")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *tell != "" {
		return curl(ctx, []string{"-X", http.MethodPost, "127.0.0.1:5000/" + *tell})
	}
	return serve(ctx, *version)
}

// serve answers until ctx ends.
func serve(ctx context.Context, version string) error {
	instance, err := os.Hostname()
	if err != nil {
		return err
	}
	var failing atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) {
		if failing.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, "Hello version: %s, instance: %s\n", version, instance)
	})
	mux.HandleFunc("POST /fail", func(http.ResponseWriter, *http.Request) { failing.Store(true) })
	mux.HandleFunc("POST /mend", func(http.ResponseWriter, *http.Request) { failing.Store(false) })
	srv := &http.Server{Addr: ":5000", Handler: mux, ReadHeaderTimeout: 2 * time.Hour}
	failed := make(chan error, 1)
	go func() { failed <- srv.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(srv.Shutdown(grace), srv.Close())
}

func curl(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("curl", flag.ContinueOnError)
	method := flags.String("X", http.MethodGet, "method")
	flags.Bool("sS", false, "as of curl; nothing else is printed anyway")
	if err := flags.Parse(args); err != nil {
		return err
	}
	url := flags.Arg(0)
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, *method, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
