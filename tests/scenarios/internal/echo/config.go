// Package echo is the application behind every workload of a scenario: it answers with what it saw, misbehaves on
// request, and remembers what came. Every port answers HTTP/1, HTTP/2 with prior knowledge, gRPC and the line protocol,
// whichever the first bytes are, inside TLS where the port has a certificate: what reached it is the subject of a
// scenario, not whether it liked it.
package echo

import (
	"encoding/json"
	"fmt"
	"os"

	"fairlead.dev/tests/scenarios/internal/format"
)

// Config is what an application is given.
type Config struct {
	Workload string `json:"workload"`
	// IPs are the pod's addresses.
	IPs   []string `json:"ips"`
	Ports []Port   `json:"ports"`
	// Journal is the path of the unix socket that tells what came; empty for none.
	Journal string `json:"journal"`
	// Calls is a file to which the identifier of each request is appended before its answer, a line each; empty for
	// none.
	Calls string `json:"calls"`
	// Shared is a directory that all applications of a fleet have in common: whose turn it is among codes is counted
	// there, because a retry goes to another pod. Empty counts in this process alone.
	Shared string `json:"shared"`
	// Resolver is the address, IP:port, of the DNS server that a CONNECT port asks, and Search are the domains it looks
	// in.
	Resolver string   `json:"resolver"`
	Search   []string `json:"search"`
	// Proxyless has gRPC ports be configured by xDS, as $GRPC_XDS_BOOTSTRAP says.
	Proxyless bool `json:"proxyless"`
}

// Port is one listener.
type Port struct {
	Name string `json:"name"`
	Port int    `json:"port"`
	// App and Bind are as in format.Port.
	App  string `json:"app"`
	Bind string `json:"bind"`
	// CertFile and KeyFile are PEM; ClientCAFile, if any, makes a client's certificate necessary.
	CertFile     string `json:"certFile"`
	KeyFile      string `json:"keyFile"`
	ClientCAFile string `json:"clientCAFile"`
}

func (p *Port) hasTLS() bool { return p.App == format.AppHTTPS || p.App == format.AppTLS }

// Load reads a configuration file.
func Load(file string) (Config, error) {
	var c Config
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}
