package caller

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"fairlead.dev/tests/scenarios/internal/echo"
)

// target is a URL taken apart without making it any nicer.
type target struct {
	scheme string
	// authority is as written, host and port what it says; path has the query and is as written.
	authority, host string
	port            int
	path            string
}

var errURL = errors.New("cannot be called")

var usualPorts = map[string]int{
	"http": 80, "h2c": 80, "ws": 80, "grpc": 80, "https": 443, "h2": 443, "wss": 443, "grpcs": 443, "tls": 443,
}

func parse(url string) (target, error) {
	var t target
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return t, fmt.Errorf("%w: %q has no scheme", errURL, url)
	}
	t.scheme = strings.ToLower(scheme)
	rest, _, _ = strings.Cut(rest, "#")
	t.authority = rest
	if at := strings.IndexAny(rest, "/?"); at >= 0 {
		t.authority, t.path = rest[:at], rest[at:]
	}
	if !strings.HasPrefix(t.path, "/") {
		t.path = "/" + t.path
	}
	if at := strings.LastIndexByte(t.authority, '@'); at >= 0 {
		t.authority = t.authority[at+1:]
	}
	if path, query, has := strings.Cut(t.path, "?"); path == "/" && t.isGRPC() {
		if t.path = echo.GRPCMethod; has {
			t.path += "?" + query
		}
	}
	t.port = usualPorts[t.scheme]
	t.host = strings.Trim(t.authority, "[]")
	if host, port, err := net.SplitHostPort(t.authority); err == nil {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return t, fmt.Errorf("%w: %q has no port", errURL, url)
		}
		t.host, t.port = host, n
	}
	if t.host == "" || t.port == 0 && t.scheme != "dns" {
		return t, fmt.Errorf("%w: %q wants a host and a port", errURL, url)
	}
	return t, nil
}

func (t *target) isGRPC() bool { return t.scheme == "grpc" || t.scheme == "grpcs" }

func (t *target) hasTLS() bool {
	switch t.scheme {
	case "https", "h2", "grpcs", "wss", "tls":
		return true
	}
	return false
}

// isHTTP2 tells whether HTTP/2 is spoken without being asked for.
func (t *target) isHTTP2() bool { return t.scheme == "h2c" || t.scheme == "h2" || t.isGRPC() }

func (t *target) isLine() bool { return t.scheme == "tcp" || t.scheme == "tls" || t.isDatagram() }

func (t *target) isDatagram() bool { return t.scheme == "udp" }

// alpn is what is offered if the call says nothing.
func (t *target) alpn() []string {
	switch {
	case t.isHTTP2():
		return []string{"h2"}
	case t.isLine():
		return nil
	}
	return []string{"http/1.1"}
}

// follow is where a Location leads.
func (t *target) follow(location string) (target, error) {
	switch {
	case strings.HasPrefix(location, "//"):
		return parse(t.scheme + ":" + location)
	case strings.HasPrefix(location, "/"):
		next := *t
		next.path, _, _ = strings.Cut(location, "#")
		return next, nil
	case strings.Contains(location, "://"):
		return parse(location)
	}
	next := *t
	path, _, _ := strings.Cut(t.path, "?")
	next.path = path[:strings.LastIndexByte(path, '/')+1] + location
	return next, nil
}
