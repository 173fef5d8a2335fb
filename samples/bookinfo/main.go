// Command bookinfo plays one service of a small book shop: productpage, details, reviews (v1 to v3) or ratings.
//
// It is an ordinary program that knows nothing of the mesh: it listens on plain HTTP, calls its neighbours by the names
// of their Services through the proxy that HTTP_PROXY names (if any), and hands trace headers on. What it shows of the
// mesh, the verified caller of each hop, it reads from the X-Forwarded-Client-Cert header that its sidecar sets.
//
// Exit codes: 0 stopped by a signal, 1 failure while running, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/samples/bookinfo/internal/books"
)

const (
	exitFailure = 1
	exitUsage   = 2
	// patience with clients that send nothing.
	patience = 2 * time.Hour
)

// options are the flags that all services share.
type options struct {
	listen  string
	version string
	grace   time.Duration
}

// errUsage marks an error of the command line.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command(os.Getenv).ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "bookinfo:", err)
	if errors.Is(err, errUsage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailure)
}

// command returns the command line. env provides defaults: HOST, PORT, POD_NAME.
func command(env func(string) string) *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:           "bookinfo SERVICE",
		Short:         "Play one service of the book shop",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return fmt.Errorf("%w: name the service to play: productpage, details, reviews or ratings", errUsage)
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	flags := root.PersistentFlags()
	flags.StringVar(&o.listen, "listen", defaultListen(env("HOST"), env("PORT")),
		"address to listen on; $HOST:$PORT if PORT is set, HOST being 127.0.0.1 unless set")
	flags.StringVar(&o.version, "version", "v1", "version of the service")
	flags.DurationVar(&o.grace, "grace", 10*time.Second, "how long requests may go on after SIGTERM")

	urls := books.DefaultURLs()
	var timeout time.Duration
	add := func(name, short string, calls []string, build func(books.Config) (http.Handler, error)) {
		cmd := &cobra.Command{Use: name, Short: short, Args: usageArgs(cobra.NoArgs), RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil)).With("service", name, "version", o.version)
			handler, err := build(books.Config{
				Server: books.Server{Service: name, Version: o.version, Pod: podName(env)},
				URLs:   *urls,
				Client: books.NewClient(http.ProxyFromEnvironment, timeout),
				Log:    log,
			})
			if err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			lis, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", o.listen)
			if err != nil {
				return fmt.Errorf("listen on %q: %w", o.listen, err)
			}
			return serve(cmd.Context(), log, lis, o.grace, handler)
		}}
		for _, callee := range calls {
			cmd.Flags().StringVar(urls.Ref(callee), callee+"-url", *urls.Ref(callee), "where to reach "+callee)
		}
		if len(calls) > 0 {
			cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long one call of another service may take")
		}
		root.AddCommand(cmd)
	}
	add("productpage", "Show the page, made of details and reviews", []string{"details", "reviews", "ratings"}, books.NewProductPage)
	add("details", "Tell the facts about a book", nil, books.NewDetails)
	add("reviews", "Tell what readers think; v1 without stars, v2 with black, v3 with red ones", []string{"ratings"}, books.NewReviews)
	add("ratings", "Tell how many stars readers give", nil, books.NewRatings)
	return root
}

// usageArgs marks the errors of check as wrong usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		return nil
	}
}

// defaultListen is port 9080 on every address, as under Kubernetes. With an assigned port the program listens on
// loopback, so that no client can bypass its sidecar.
func defaultListen(host, port string) string {
	switch {
	case port == "":
		return ":9080"
	case host == "":
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// podName is POD_NAME, or the host's name, which is the Pod's name under Kubernetes.
func podName(env func(string) string) string {
	if name := env("POD_NAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// serve answers requests on lis until ctx ends, and then waits up to grace for those that are running.
func serve(ctx context.Context, log *slog.Logger, lis net.Listener, grace time.Duration, handler http.Handler) error {
	srv := &http.Server{
		Handler: handler,
		// Longer than the idle timeout of sidecars, so that the server does not close a connection while a request
		// arrives. The time to the first request counts like the time between requests: a sidecar opens connections
		// before it needs them.
		ReadHeaderTimeout: patience,
		ReadTimeout:       patience,
		IdleTimeout:       patience,
		WriteTimeout:      30 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	log.Info("listening", "address", lis.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(lis) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return fmt.Errorf("requests under way did not end within %s: %w", grace, errors.Join(err, srv.Close()))
	}
	log.Info("stopped")
	return nil
}
