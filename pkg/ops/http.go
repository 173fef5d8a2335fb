package ops

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"fairlead.dev/pkg/fairshare"
)

// HTTP is an HTTP port that bounds connections, headers and the time of requests like every port does. A handler bounds
// the bodies that it reads.
type HTTP struct {
	Listener net.Listener
	// TLS makes the port speak TLS only.
	TLS     *tls.Config
	Handler http.Handler
	Log     *slog.Logger
	// OnEvict is called with a connection that is about to be closed to make room for another. Optional.
	OnEvict func(net.Conn)
}

// Serve serves until ctx ends, and closes Listener. It returns nil after a stop that was asked for.
func (h HTTP) Serve(ctx context.Context) error {
	var lis net.Listener = newConnLimiter(h.Listener, h.TLS != nil, h.OnEvict)
	if h.TLS != nil {
		lis = tls.NewListener(lis, h.TLS) // outermost, or net/http does not see that it is TLS
	}
	server := &http.Server{
		Handler:           h,
		ConnContext:       withConn,
		ConnState:         unbindHandshake,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(h.Log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(lis) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP implements http.Handler: it marks the connection, so that one on which no handler runs is evicted first.
func (h HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.setState(fairshare.Busy)
		defer c.setState(fairshare.Idle)
	}
	h.Handler.ServeHTTP(w, r)
}
