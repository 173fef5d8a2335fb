package appprobe

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"fairlead.dev/services/node-agent/internal/probe"
)

const (
	// maxConcurrent bounds the probes of one path that run at once. kubelet runs one; others may reach the port, too.
	maxConcurrent = 8
	// answerTime is how long an answer may take to be written.
	answerTime = 15 * time.Second
)

// Options of New. Log is required.
type Options struct {
	// Destination is the workload's address, or Localhost.
	Destination string
	// V6 is true if the workload's address is one of IPv6.
	V6 bool
	// StatusPort is the agent's port: a Host header with it gets the application's port.
	StatusPort uint16
	KeepAlive  bool
	HTTP1      bool
	Log        *slog.Logger
}

// Localhost is the destination of Istio's older agents, for applications that listen there only.
const Localhost = "localhost"

// Handler answers one probe.
type Handler struct {
	*Probe
	options Options
	dialer  probe.Dialer
	client  *http.Client
	running chan struct{}
}

// New makes the handlers of the probes.
func New(probes []*Probe, o Options) []*Handler {
	out := make([]*Handler, 0, len(probes))
	for _, p := range probes {
		h := &Handler{Probe: p, options: o, dialer: probe.Dialer{V6: o.V6}, running: make(chan struct{}, maxConcurrent)}
		if p.Kind == "httpGet" {
			h.client = probe.NewHTTP(probe.HTTPOptions{Dialer: h.dialer, KeepAlive: o.KeepAlive, HTTP1: o.HTTP1})
		}
		out = append(out, h)
	}
	return out
}

// ServeHTTP probes the application and answers with the application's status, with 200 for a redirect, or with 500 if
// the application has not answered.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	default:
		http.Error(w, fmt.Sprintf("%d probes of %s run already", maxConcurrent, h.Path), http.StatusServiceUnavailable)
		return
	}
	// The port's own limits are those of short requests. Errors mean a recorder of a test.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Now().Add(h.Timeout + answerTime))
	ctx, cancel := context.WithTimeout(r.Context(), h.Timeout)
	defer cancel()
	var err error
	switch h.Kind {
	case "httpGet":
		err = h.http(ctx, w, r)
	case "tcpSocket":
		err = h.dialer.TCP(ctx, h.address())
	default:
		err = h.dialer.GRPC(ctx, h.address(), h.Service, r.UserAgent())
	}
	if err != nil {
		h.options.Log.Info("probe of the application failed", "path", h.Path, "kind", h.Kind, "port", h.Port, "error", err)
		http.Error(w, "probe of the application failed: "+err.Error(), http.StatusInternalServerError)
	}
}

func (h *Handler) address() string {
	return net.JoinHostPort(h.options.Destination, strconv.Itoa(int(h.Port)))
}

// hopByHop are headers of one connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// http asks the application with the headers of r and writes its answer. It writes nothing if it returns an error.
func (h *Handler) http(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	u := *h.URL
	u.Scheme, u.Host = "http", h.address()
	if h.TLS {
		u.Scheme = "https"
	}
	req := (&http.Request{Method: http.MethodGet, URL: &u, Host: h.host(r.Host), Header: r.Header.Clone()}).WithContext(ctx)
	for _, name := range hopByHop {
		req.Header.Del(name)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		// The text of a url.Error has the whole URL, which may have secrets in its query.
		if short, ok := err.(*url.Error); ok { //nolint:errorlint // the outermost alone
			err = short.Err
		}
		return err
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch code := resp.StatusCode; {
	case code < http.StatusOK:
		return fmt.Errorf("the application answered with status %d", code)
	case code >= http.StatusMultipleChoices && code < http.StatusBadRequest:
		return nil // a redirect to elsewhere: status 200, as an answer with the status of a redirect needs a Location
	default:
		body, _ := io.ReadAll(io.LimitReader(resp.Body, probe.MaxBody)) // the status counts
		w.WriteHeader(code)
		_, _ = w.Write(body) // an error means that the caller has gone
		return nil
	}
}

// host is the Host header for the application: that of kubelet, with the application's port where it has the agent's.
func (h *Handler) host(given string) string {
	name, port, err := net.SplitHostPort(given)
	if err != nil || port != strconv.Itoa(int(h.options.StatusPort)) {
		return given
	}
	return net.JoinHostPort(name, strconv.Itoa(int(h.Port)))
}

// Destination is where the application of a workload with these addresses is probed: at its first address, or on
// localhost.
func Destination(addresses []netip.Addr, localhost bool) (destination string, v6 bool) {
	v6 = len(addresses) > 0 && addresses[0].Is6()
	if localhost || len(addresses) == 0 {
		return Localhost, v6
	}
	return addresses[0].String(), v6
}
