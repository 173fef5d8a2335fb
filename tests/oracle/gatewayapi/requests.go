package gatewayapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// asked is what a workload is asked.
type asked struct {
	port int
	// service is what a sidecar's application asks, namespace/name, and to its address.
	service string
	to      netip.Addr
	// protocol is that of the listener: "http", "tls" or "tcp".
	protocol string
	host     string
	// server is the name of the server in TLS; empty for the host.
	server string
	// repeats are those of a line by TCP.
	repeats  int
	variants []variant
}

// variant is a request without its host.
type variant struct {
	method, path string
	headers      map[string]string
	// tries says that the number of tries is compared too.
	tries bool
	// repeats is how often to ask, so that every backend answers; 0 is once.
	repeats int
}

func (v variant) String() string {
	out := v.method + " " + v.path
	for _, name := range slices.Sorted(maps.Keys(v.headers)) {
		out += " " + name + "=" + v.headers[name]
	}
	return out
}

// questions derives what to ask a workload from all listeners and routes of an input: each host and one that is not
// there, and requests that each match takes, or nearly.
func (in *input) questions(p *proxy) []asked {
	ports := map[int]map[string]bool{}
	hosts := map[string]bool{"other.test": true}
	for _, g := range p.gateways {
		for _, l := range in.listeners[g] {
			if ports[l.Port] == nil {
				ports[l.Port] = map[string]bool{}
			}
			ports[l.Port][map[string]string{"HTTP": "http", "HTTPS": "tls", "TLS": "tls", "TCP": "tcp"}[l.Protocol]] = true
			hosts[l.Hostname] = true
		}
	}
	variants, lines := in.variants()
	for _, r := range in.routes {
		for _, h := range r.Spec.Hostnames {
			hosts[h] = true
		}
	}
	all := map[string]bool{}
	for h := range hosts {
		if rest, ok := strings.CutPrefix(h, "*."); ok {
			all["a."+rest], all["a.b."+rest] = true, true
		} else if h != "" {
			all[h], all["a."+h] = true, true
		}
	}
	var out []asked
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		for _, protocol := range slices.Sorted(maps.Keys(ports[port])) {
			switch protocol {
			case "tcp":
				out = append(out, asked{port: port, protocol: protocol, repeats: lines})
			case "http", "tls":
				names := slices.Sorted(maps.Keys(all))
				for i, h := range names {
					out = append(out, asked{port: port, protocol: protocol, host: h, variants: variants})
					if protocol == "tls" { // a connection that is used for another host
						root := []variant{{method: "GET", path: "/"}}
						out = append(out, asked{port: port, protocol: protocol, host: names[(i+1)%len(names)], server: h, variants: root})
					}
				}
			}
		}
	}
	return out
}

// calls derives what a sidecar's application asks of every Service of an input, by each of its names and by a wrong
// one.
func (in *input) calls(p *proxy) (out []asked) {
	variants, lines := in.variants()
	for _, service := range slices.Sorted(maps.Keys(in.services)) {
		namespace, name, _ := strings.Cut(service, "/")
		full := name + "." + namespace + ".svc.cluster.local"
		hosts := []string{name + "." + namespace, full, "other.test"}
		if namespace == p.namespace {
			hosts = append(hosts, name)
		}
		for _, port := range slices.Sorted(maps.Keys(in.services[service])) {
			a := asked{port: port, service: service, to: in.clusterIPs[service], protocol: "http", variants: variants}
			switch in.services[service][port] {
			case "tcp":
				a.protocol, a.repeats = "tcp", lines
				out = append(out, a)
			case "tls":
				a.protocol, a.variants = "tls", variants[:1]
				fallthrough
			default:
				for _, a.host = range hosts {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// variants are those of all routes, and how often to ask for a line.
func (in *input) variants() (variants []variant, lines int) {
	for _, r := range in.routes {
		if r.Kind == "TCPRoute" {
			for _, rule := range r.Spec.Rules {
				lines = max(lines, rule.repeats())
			}
		} else {
			variants = append(variants, r.variants()...)
		}
	}
	most := 0 // of those that other rules take with the variants of one
	for _, v := range variants {
		most = max(most, v.repeats)
	}
	for i := range variants {
		variants[i].repeats = most
	}
	variants = append(variants, variant{method: "GET", path: "/", repeats: most}, variant{method: "GET", path: "/nowhere", repeats: most})
	slices.SortFunc(variants, func(a, b variant) int {
		return or(strings.Compare(a.String(), b.String()), b.repeats-a.repeats)
	})
	variants = slices.CompactFunc(variants, func(a, b variant) bool { return a.String() == b.String() })
	return variants, lines
}

// variants of a route: what each match says, and near misses of it.
func (r *route) variants() (out []variant) {
	for _, rule := range r.Spec.Rules {
		matches := rule.Matches
		if len(matches) == 0 {
			matches = []match{{}}
		}
		for _, m := range matches {
			base := variant{method: "GET", path: "/", headers: map[string]string{}, repeats: rule.repeats()}
			var paths []string
			value := m.Path.Value
			switch {
			case r.Kind == "GRPCRoute":
				var method struct{ Service, Method string }
				_ = json.Unmarshal(m.Method, &method) // none is none
				base.method = "POST"
				base.headers["Content-Type"] = "application/grpc"
				paths = []string{"/" + or(method.Service, "any.Service") + "/" + or(method.Method, "Any"), "/other.Service/Other"}
			case value == "":
				paths = []string{"/"}
			case m.Path.Type == "RegularExpression":
				paths = []string{strings.NewReplacer(".*", "x", ".+", "x", "^", "", "$", "").Replace(value), "/x" + value}
			default:
				trimmed := strings.TrimSuffix(value, "/")
				paths = []string{value, trimmed + "/more", trimmed + "more", trimmed + "?a=b"}
			}
			var method string
			if json.Unmarshal(m.Method, &method) == nil && method != "" {
				base.method = method
				out = append(out, variant{method: "DELETE", path: paths[0]})
			}
			for _, h := range m.Headers {
				base.headers[http.CanonicalHeaderKey(h.Name)] = h.Value
			}
			var query []string
			for _, q := range m.QueryParams {
				query = append(query, q.Name+"="+q.Value)
			}
			for _, path := range paths {
				v := base
				v.path = path
				if !strings.HasPrefix(v.path, "/") {
					v.path = "/" + v.path
				}
				out = append(out, variant{method: v.method, path: v.path, repeats: base.repeats})
				if len(query) > 0 {
					v.path += "?" + strings.Join(query, "&")
				}
				out = append(out, v)
			}
			for _, h := range m.Headers {
				wrong := maps.Clone(base.headers)
				wrong[http.CanonicalHeaderKey(h.Name)] = h.Value + "-not"
				out = append(out, variant{method: base.method, path: paths[0], headers: wrong})
			}
			out = append(out, rule.more(base, paths[0])...)
		}
	}
	return out
}

// more are requests for what filters and retries do.
func (rule *rule) more(base variant, path string) (out []variant) {
	with := func(method string, headers ...string) variant {
		v := base
		v.method, v.path, v.headers = method, path, maps.Clone(base.headers)
		for i := 0; i < len(headers); i += 2 {
			v.headers[headers[i]] = headers[i+1]
		}
		return v
	}
	for _, f := range rule.Filters {
		if f.CORS == nil {
			continue
		}
		for _, origin := range append(slices.Clone(f.CORS.AllowOrigins), "https://not.test") {
			origin = strings.ReplaceAll(origin, "*", "a")
			out = append(out, with("GET", "Origin", origin), with("OPTIONS", "Origin", origin, "Access-Control-Request-Method", "POST"),
				with("OPTIONS", "Origin", origin, "Access-Control-Request-Method", "DELETE"))
		}
	}
	if rule.Retry != nil {
		for _, code := range append(slices.Clone(rule.Retry.Codes), http.StatusServiceUnavailable, http.StatusInternalServerError) {
			v := with("GET", failHeader, strconv.Itoa(code))
			v.tries = true
			out = append(out, v)
		}
	}
	return append(out, with(base.method, "My-Removed-Header", "of the caller"))
}

// repeats tells how often to ask, so that every backend of a rule answers; 0 is once.
func (rule *rule) repeats() int {
	sum, least := 0, 0
	for _, b := range rule.BackendRefs {
		weight := 1
		if b.Weight != nil {
			weight = *b.Weight
		}
		sum += weight
		if weight > 0 && (least == 0 || weight < least) {
			least = weight
		}
	}
	if sum == least {
		return 0
	}
	return 20 * sum / least // one of e^20 misses a backend
}

// client sends requests to a workload's Envoy.
type client struct {
	*running
	echo *echo
	cert tls.Certificate
	// name makes probes of this client other ones than those of others.
	name  string
	count int
	// application is the address of the machine whose connections the sidecar takes.
	application string
}

const answerWithin = 10 * time.Second

// ask returns the answers by question.
func (c *client) ask(ctx context.Context, a asked) map[string]string {
	out := map[string]string{}
	if a.protocol == "tcp" {
		out[strings.TrimSpace(fmt.Sprintf("%s %d tcp", a.service, a.port))] = several(a.repeats, func() string { return c.line(ctx, a) })
		return out
	}
	var seen string
	transport := &http.Transport{
		DisableCompression: true, MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx, a) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, said, err := c.handshake(ctx, a)
			seen = said
			return conn, err
		},
	}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if a.protocol == "tls" {
		scheme = "https"
	}
	for _, v := range a.variants {
		question := strings.TrimSpace(fmt.Sprintf("%s %d %s %s %s", a.service, a.port, a.protocol, a.host, v))
		if a.server != "" {
			question += " by " + a.server
		}
		closed := false
		out[question] = several(v.repeats, func() string {
			text, err := c.request(ctx, transport, scheme, a.host, v)
			if err != nil {
				closed = true
				text = plain(err)
			}
			if a.protocol == "tls" && err == nil {
				text = seen + ": " + text
			}
			return text
		})
		if closed && a.protocol == "tls" {
			break // as it would be with all others
		}
	}
	return out
}

// several answers, each once.
func several(repeats int, f func() string) string {
	all := map[string]bool{}
	for range max(1, repeats) {
		all[f()] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " | ")
}

func (c *client) dial(ctx context.Context, a asked) (net.Conn, error) {
	to, source := c.host.IP, ""
	if a.to.IsValid() {
		to, source = a.to, c.application
	}
	return c.host.Dial(ctx, "tcp", netip.AddrPortFrom(to, uint16(a.port)).String(), source) //nolint:gosec // a port
}

func (c *client) handshake(ctx context.Context, a asked) (net.Conn, string, error) {
	conn, err := c.dial(ctx, a)
	if err != nil {
		return nil, "", err
	}
	wanted := ""
	inner := tls.Client(conn, &tls.Config{
		ServerName: or(a.server, a.host), InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, //nolint:gosec // it looks whose certificate it is
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			wanted = ", asks for one"
			return &c.cert, nil
		},
	})
	if err := inner.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, "", err
	}
	return inner, "certificate " + inner.ConnectionState().PeerCertificates[0].Subject.CommonName + wanted, nil
}

// told are headers of responses that say nothing about routes.
var told = []string{"Date", "Server", "X-Envoy-", "Content-Length", "Content-Type", "Connection", "Vary", echoHeader}

func (c *client) request(ctx context.Context, transport http.RoundTripper, scheme, host string, v variant) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, v.method, scheme+"://gateway.test"+v.path, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Host = host
	for name, value := range v.headers {
		req.Header.Set(name, value)
	}
	c.count++
	id := fmt.Sprint(c.name, c.count)
	req.Header.Set(probeHeader, id)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return "", err
	}
	out := strconv.Itoa(resp.StatusCode)
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		if !hasPrefix(name, told) {
			out += " " + name + "=" + strings.Join(resp.Header[name], ",")
		}
	}
	tries := c.echo.taken(id, string(body))
	if resp.Header.Get(echoHeader) != "" {
		out += " " + string(body)
	}
	if v.tries {
		out += fmt.Sprintf(" tries %d", tries)
	}
	return out, nil
}

// line asks for a line over TCP.
func (c *client) line(ctx context.Context, a asked) string {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	conn, err := c.dial(ctx, a)
	if err != nil {
		return plain(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerWithin))
	if _, err := io.WriteString(conn, "tcp\n"); err != nil {
		return plain(err)
	}
	text, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return plain(err)
	}
	return strings.TrimSpace(text)
}

// plain is an error without addresses. An alert of TLS after a handshake and the end of the connection are one: which
// comes first is chance.
func plain(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		strings.Contains(err.Error(), "tls: "):
		return "closed"
	}
	return err.Error()
}
