// Package envoyadmin asks an Envoy's admin interface and shows what the Envoy holds. A Client fetches: Dump (the
// configuration), Clusters (endpoints with their health), Certificates, Loggers, Stats. A Dump is filtered by Only and
// shown as tables (ClustersTable, RoutesTable, ...) or as JSON without private keys. ServedDump makes a Dump of the
// resources that an xds-server has for a proxy, so that both are shown alike. Callers are `fairlead proxy-config`,
// `proxy renew`, the demo and the local runtime.
package envoyadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Client asks one Envoy's admin interface.
type Client struct {
	ask func(ctx context.Context, method, path string) ([]byte, error)
}

// New returns a client of the admin interface on the unix socket; it connects anew for each request.
func New(socket string) *Client {
	s := &onSocket{socket: socket, http: &http.Client{
		Timeout: 15 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}}
	return &Client{ask: s.do}
}

// NewBy returns a client whose requests are sent by a function, such as one that runs the agent's command `request` in
// a container.
func NewBy(ask func(ctx context.Context, method, path string) ([]byte, error)) *Client {
	return &Client{ask: ask}
}

// Get reads a page of the admin interface.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.ask(ctx, http.MethodGet, path)
}

// Do sends a request to the admin interface, GET or POST.
func (c *Client) Do(ctx context.Context, method, path string) ([]byte, error) {
	return c.ask(ctx, method, path)
}

// onSocket sends requests to a unix socket.
type onSocket struct {
	socket string
	http   *http.Client
}

func (s *onSocket) do(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := s.http.Do(req)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("admin socket %s does not exist: the proxy does not run (yet); see its log", s.socket)
		}
		return nil, fmt.Errorf("admin interface: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("admin interface %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("admin interface %s: %s", path, res.Status)
	}
	return body, nil
}

// getJSON decodes a page of the admin interface into out; what names it in errors.
func (c *Client) getJSON(ctx context.Context, path, what string, out any) error {
	body, err := c.Get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Dump is an answer of /config_dump by section.
type Dump struct {
	sections map[string]json.RawMessage
}

// Dump fetches the configuration, endpoints included.
func (c *Client) Dump(ctx context.Context) (*Dump, error) {
	body, err := c.Get(ctx, "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	return ParseDump(body)
}

// ParseDump parses the text of a config dump.
func ParseDump(body []byte) (*Dump, error) {
	var dump struct {
		Configs []json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(body, &dump); err != nil {
		return nil, fmt.Errorf("config dump: %w", err)
	}
	d := &Dump{sections: map[string]json.RawMessage{}}
	for _, raw := range dump.Configs {
		var typed struct {
			Type string `json:"@type"`
		}
		if err := json.Unmarshal(raw, &typed); err != nil {
			return nil, fmt.Errorf("config dump: %w", err)
		}
		d.sections[typed.Type] = raw
	}
	return d, nil
}

const adminPrefix = "type.googleapis.com/envoy.admin.v3."

// section decodes a section into out. Envoy leaves out empty sections; out then keeps its zero value.
func (d *Dump) section(name string, out any) error {
	raw, ok := d.sections[adminPrefix+name]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("config dump, %s: %w", name, err)
	}
	return nil
}

// Clusters fetches the clusters with their endpoints and these with their health.
func (c *Client) Clusters(ctx context.Context) (*ClusterStatuses, error) {
	out := &ClusterStatuses{}
	return out, c.getJSON(ctx, "/clusters?format=json", "clusters", out)
}

// Certificate is the leaf of a certificate chain that the Envoy holds.
type Certificate struct {
	Serial string `json:"serial_number"`
	Names  []struct {
		URI string `json:"uri"`
	} `json:"subject_alt_names"`
	NotBefore time.Time `json:"valid_from"`
	NotAfter  time.Time `json:"expiration_time"`
}

// Certificates fetches the Envoy's own certificates, as its TLS contexts hold them.
func (c *Client) Certificates(ctx context.Context) ([]Certificate, error) {
	var all struct {
		Certificates []struct {
			Chain []Certificate `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := c.getJSON(ctx, "/certs", "certs", &all); err != nil {
		return nil, err
	}
	var list []Certificate
	for _, c := range all.Certificates {
		if len(c.Chain) > 0 {
			list = append(list, c.Chain[0])
		}
	}
	return list, nil
}

// Fresh returns a certificate of now that is not in before; nil if there is none. Envoy lists a renewed certificate
// beside the old one until the last connection that uses the old one ends.
func Fresh(now, before []Certificate) *Certificate {
	for i, c := range now {
		if !slices.ContainsFunc(before, func(b Certificate) bool { return b.Serial == c.Serial }) {
			return &now[i]
		}
	}
	return nil
}

// Version is Envoy's version, "1.40.0".
func (c *Client) Version(ctx context.Context) (string, error) {
	var info struct {
		// Version is "<commit>/1.40.0/Clean/RELEASE/BoringSSL".
		Version string `json:"version"`
	}
	if err := c.getJSON(ctx, "/server_info", "server info", &info); err != nil {
		return "", err
	}
	parts := strings.Split(info.Version, "/")
	return parts[min(1, len(parts)-1)], nil
}

// Stats fetches the counters and gauges whose names match filter, a regular expression.
func (c *Client) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	var all struct {
		Stats []struct {
			Name  string      `json:"name"`
			Value json.Number `json:"value"`
		} `json:"stats"`
	}
	if err := c.getJSON(ctx, "/stats?format=json&type=All&filter="+url.QueryEscape(filter), "stats", &all); err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, s := range all.Stats {
		if s.Name == "" {
			continue // histograms have no name here
		}
		n, err := s.Value.Int64()
		if err != nil {
			return nil, fmt.Errorf("stats, %s: %w", s.Name, err)
		}
		out[s.Name] = uint64(n)
	}
	return out, nil
}
