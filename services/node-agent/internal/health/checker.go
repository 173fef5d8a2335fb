// Package health probes the application as a WorkloadGroup asks (ProxyConfig.readinessProbe) and tells when it becomes
// well or unwell. Package app runs Checker and passes what it tells to the relay, which tells the control plane.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/node-agent/internal/appprobe"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/probe"
)

const (
	userAgent = "istio-probe/1.0"
	// maxMessage bounds the reason that the control plane is told.
	maxMessage = 512
)

// Config of a Checker. Probe, Tell and Log are required.
type Config struct {
	Probe *config.ReadinessProbe
	// Addresses are the workload's, of which the first is probed where the probe names no host; Localhost probes
	// localhost there.
	Addresses []netip.Addr
	Localhost bool
	// Proxy, if set, is asked before the application: a workload whose proxy is not ready is not well.
	Proxy func(context.Context) error
	// Tell is called when the workload becomes well (nil) and when it becomes unwell; at first with whichever it is.
	Tell  func(problem error)
	Clock clock.Clock
	Log   *slog.Logger
}

// Checker probes one application.
type Checker struct {
	cfg    Config
	dialer probe.Dialer
	host   string
	client *http.Client
}

// New makes a Checker; Run probes.
func New(c Config) *Checker {
	c.Clock = clock.Or(c.Clock)
	host, v6 := appprobe.Destination(c.Addresses, c.Localhost)
	d := probe.Dialer{V6: v6}
	return &Checker{cfg: c, dialer: d, host: host, client: probe.NewHTTP(probe.HTTPOptions{Dialer: d})}
}

// Run probes until ctx ends. The state changes after as many equal results in a row as the probe's thresholds say.
func (c *Checker) Run(ctx context.Context) error {
	p := c.cfg.Probe
	wait := p.InitialDelay
	told, well := false, false
	successes, failures := 0, 0
	for ctx.Err() == nil {
		if wait > 0 && !clock.Sleep(ctx, c.cfg.Clock, wait) {
			return nil
		}
		began := c.cfg.Clock.Now()
		problem := c.check(ctx)
		switch {
		case ctx.Err() != nil: // the probe was cut off
			continue
		case problem == nil:
			successes, failures = successes+1, 0
		default:
			successes, failures = 0, failures+1
		}
		switch {
		case problem == nil && successes >= p.Success && (!told || !well):
			told, well = true, true
			c.cfg.Log.Info("the workload is well")
			c.cfg.Tell(nil)
		case problem != nil && failures >= p.Failure && (!told || well):
			told, well = true, false
			c.cfg.Log.Warn("the workload is not well", "error", problem)
			c.cfg.Tell(problem)
		}
		wait = max(p.Period-c.cfg.Clock.Now().Sub(began), time.Millisecond)
	}
	return nil
}

// check asks proxy and application once.
func (c *Checker) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Probe.Timeout)
	defer cancel()
	err := c.ask(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s: %w", c.cfg.Probe.Timeout, err)
	}
	if err != nil && len(err.Error()) > maxMessage {
		err = errors.New(strings.ToValidUTF8(err.Error()[:maxMessage], ""))
	}
	return err
}

func (c *Checker) ask(ctx context.Context) error {
	if c.cfg.Proxy != nil {
		if err := c.cfg.Proxy(ctx); err != nil {
			return fmt.Errorf("the proxy is not ready: %w", err)
		}
	}
	switch m := c.cfg.Probe.GetHealthCheckMethod().(type) {
	case *networking.ReadinessProbe_HttpGet:
		return c.http(ctx, m.HttpGet)
	case *networking.ReadinessProbe_TcpSocket:
		return c.dialer.TCP(ctx, c.address(m.TcpSocket.GetHost(), m.TcpSocket.GetPort()))
	case *networking.ReadinessProbe_Grpc:
		return c.dialer.GRPC(ctx, c.address("", m.Grpc.GetPort()), m.Grpc.GetService(), userAgent)
	case *networking.ReadinessProbe_Exec:
		return probe.Exec(ctx, m.Exec.GetCommand())
	}
	return errors.New("the probe has no method") // config has checked it
}

// address is that of a port on a host, or on the workload.
func (c *Checker) address(host string, port uint32) string {
	return net.JoinHostPort(cmp.Or(host, c.host), strconv.FormatUint(uint64(port), 10))
}

func (c *Checker) http(ctx context.Context, get *networking.HTTPHealthCheckConfig) error {
	u, err := url.Parse(get.GetPath())
	if err != nil || u.Host != "" || u.Scheme != "" {
		u = &url.URL{Path: get.GetPath()} // as kubelet
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	u.Scheme, u.Host = "http", c.address(get.GetHost(), get.GetPort())
	if strings.EqualFold(get.GetScheme(), "https") {
		u.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", userAgent)
	for _, h := range get.GetHttpHeaders() {
		switch http.CanonicalHeaderKey(h.GetName()) {
		case "Host":
			req.Host = h.GetValue()
		case "User-Agent":
			req.Header.Set("User-Agent", h.GetValue())
		default:
			req.Header.Add(h.GetName(), h.GetValue())
		}
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("GET %s: status %d, want 200 to 399", u.Path, resp.StatusCode)
	}
	return nil
}
