package networking

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// protocols are the protocols that Istio knows for a port.
var protocols = []string{"HTTP", "HTTPS", "HTTP2", "GRPC", "GRPC-WEB", "MONGO", "REDIS", "MYSQL", "TCP", "TLS", "UDP"}

func (c Checker) protocol(path, s string, more ...string) {
	known := append(append([]string(nil), protocols...), more...)
	if !slices.Contains(known, strings.ToUpper(s)) {
		c.Fail(path, s, "unknown protocol", decode.Suggest(s, known))
	}
}

// entryPortName is portName where Istio requires a DNS label.
func (c Checker) entryPortName(path, s string) {
	if s == "" || check.NameLabel(s) {
		c.PortName(path, s)
		return
	}
	c.Fail(path, s, "not a valid port name", "use at most 63 letters, digits and '-'")
}

// maxSocketPath is the longest path of a unix socket that Linux binds.
const maxSocketPath = 107

// unixSocket checks an address "unix:///path" or "unix://@abstract".
func (c Checker) unixSocket(path, s string) {
	rest := strings.TrimPrefix(s, "unix://")
	if len(rest) < 2 || rest[0] != '/' && rest[0] != '@' || strings.HasSuffix(rest, "/") {
		c.Fail(path, s, "not a unix socket", `write "unix:///path/of/socket" or "unix://@name"`)
	}
	if len(rest) > maxSocketPath {
		c.Fail(path, s, fmt.Sprintf("path of %d bytes, at most %d are possible", len(rest), maxSocketPath), "choose a shorter one")
	}
}
