// Package appprobe answers kubelet's probes of the application's containers, as Istio's agent does: injection rewrites
// a Pod's probes and lifecycle hooks of kind httpGet, tcpSocket and grpc so that kubelet asks the agent, which is
// reached in the clear, and lists the original ones in ISTIO_KUBE_APP_PROBERS. Those of kind exec need no rewriting.
// Package config calls Parse, package app registers the handlers of New on the status port.
package appprobe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Variable is the environment variable with the original probes.
const Variable = "ISTIO_KUBE_APP_PROBERS"

const (
	maxText = 1 << 20
	// maxProbes has room for five probes of each of 100 containers.
	maxProbes = 512
	// maxTimeout bounds timeoutSeconds. A lifecycle hook has none, and may take as long as its caller waits.
	maxTimeout = time.Hour
	// defaultTimeout is Kubernetes' default for a probe.
	defaultTimeout = time.Second
)

const lifecycle = "/app-lifecycle/"

// paths has the names that Kubernetes permits for containers.
var paths = regexp.MustCompile(
	`^/(app-health|app-lifecycle)/[a-z0-9A-Z]([-._a-z0-9A-Z]*[a-z0-9A-Z])?/(livez|readyz|startupz|prestopz|poststartz)$`)

// Probe is one original probe or hook.
type Probe struct {
	// Path is the agent's, /app-health/<container>/livez.
	Path string
	// Kind is "httpGet", "tcpSocket" or "grpc".
	Kind string
	Port uint16
	// TLS and URL are of httpGet: whether the scheme is HTTPS, and path and query.
	TLS bool
	URL *url.URL
	// Service is of grpc.
	Service string
	// Timeout is at least a second; maxTimeout for a hook.
	Timeout time.Duration
}

// Hook reports whether the probe is a lifecycle hook.
func (p *Probe) Hook() bool { return strings.HasPrefix(p.Path, lifecycle) }

// document is one entry of the variable. Fields that the agent does not use are those that kubelet applies itself: the
// host that it connects to, and headers.
type document struct {
	HTTPGet *struct {
		Path   string `json:"path"`
		Port   port   `json:"port"`
		Scheme string `json:"scheme"`
	} `json:"httpGet"`
	TCPSocket *struct {
		Port port `json:"port"`
	} `json:"tcpSocket"`
	GRPC *struct {
		Port    port    `json:"port"`
		Service *string `json:"service"`
	} `json:"grpc"`
	TimeoutSeconds int32 `json:"timeoutSeconds"`
}

// port is a number; injection resolves names.
type port uint16

// UnmarshalJSON implements json.Unmarshaler.
func (p *port) UnmarshalJSON(data []byte) error {
	var n int64
	if err := json.Unmarshal(data, &n); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %s: want a number, 1 to 65535", data[:min(len(data), 64)])
	}
	*p = port(n)
	return nil
}

// Parse reads the value of Variable. It returns the probes sorted by path; none for an empty text. Its error names the
// entry and the field. A probe of the agent's own port is refused, because each would cause the next one.
func Parse(text string, own uint16) ([]*Probe, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("%s is %d bytes: at most %d are read", Variable, len(text), maxText)
	}
	entries := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, fmt.Errorf("%s: want a JSON object of probes by path, which injection writes: %w", Variable, err)
	}
	if len(entries) > maxProbes {
		return nil, fmt.Errorf("%s has %d probes: at most %d are read", Variable, len(entries), maxProbes)
	}
	var out []*Probe
	var errs []error
	for path, raw := range entries {
		p, err := parse(path, raw, own)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %.200q: %w", Variable, path, err))
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Probe) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func parse(path string, raw json.RawMessage, own uint16) (*Probe, error) {
	if !paths.MatchString(path) {
		return nil, errors.New("want a path such as /app-health/<container>/livez, readyz or startupz, or /app-lifecycle/<container>/prestopz " +
			"or poststartz")
	}
	if bytes.Equal(raw, []byte("null")) {
		return nil, errors.New("null: want an object with httpGet, tcpSocket or grpc")
	}
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, err
	}
	p := &Probe{Path: path, Timeout: time.Duration(d.TimeoutSeconds) * time.Second}
	kinds := 0
	if d.HTTPGet != nil {
		kinds++
		p.Kind, p.Port, p.URL = "httpGet", uint16(d.HTTPGet.Port), target(d.HTTPGet.Path)
		switch d.HTTPGet.Scheme {
		case "", "HTTP":
		case "HTTPS":
			p.TLS = true
		default:
			return nil, fmt.Errorf("httpGet.scheme %.64q: want HTTP or HTTPS", d.HTTPGet.Scheme)
		}
	}
	if d.TCPSocket != nil {
		kinds++
		p.Kind, p.Port = "tcpSocket", uint16(d.TCPSocket.Port)
	}
	if d.GRPC != nil {
		kinds++
		p.Kind, p.Port = "grpc", uint16(d.GRPC.Port)
		if d.GRPC.Service != nil {
			p.Service = *d.GRPC.Service
		}
	}
	switch {
	case kinds != 1:
		return nil, fmt.Errorf("%d of httpGet, tcpSocket and grpc: want exactly one", kinds)
	case p.Port == 0:
		return nil, fmt.Errorf("%s.port is missing: want a number, 1 to 65535", p.Kind)
	case p.Port == own:
		return nil, fmt.Errorf("%s.port %d is that of the agent, which would probe itself: want the application's; if that is %[2]d, move the "+
			"agent by statusPort of ProxyConfig", p.Kind, own)
	case p.Timeout < 0 || p.Timeout > maxTimeout:
		return nil, fmt.Errorf("timeoutSeconds %d: want 0 to %.0f", d.TimeoutSeconds, maxTimeout.Seconds())
	case p.Timeout == 0 && p.Hook():
		p.Timeout = maxTimeout
	case p.Timeout == 0:
		p.Timeout = defaultTimeout
	}
	return p, nil
}

// target is path and query of a probe. As with kubelet, text that is no URL is a path.
func target(path string) *url.URL {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.Parse("http://host" + path)
	if err != nil {
		return &url.URL{Path: path}
	}
	return &url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}
}
