// Package proxyless serves the proxyless gRPC clients and servers of the workload: programs that speak xDS themselves.
// Bootstrap makes the file that GRPC_XDS_BOOTSTRAP names, and Files writes it, together with the workload's key,
// certificate and roots, which gRPC reads from files only. Package app calls both; the programs reach the xds-server
// through package relay.
package proxyless

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/pkg/svid"
)

const (
	// provider is the certificate provider that xDS resources refer to for the workload's certificate.
	provider = "default"
	// listenerTemplate is the name of a gRPC server's Listener; gRPC replaces %s by the server's address.
	listenerTemplate = "xds.istio.io/grpc/lds/inbound/%s"

	// refreshes is how often gRPC reads the files within the lifetime of a certificate.
	refreshes      = 96
	minimumRefresh = time.Second
	// maximumRefresh is shorter than the time for which a rotation of the ca lets certificates and roots settle that
	// their holders have acknowledged: gRPC must verify with new roots before anything is issued below them.
	maximumRefresh  = 5 * time.Second
	certificateFile = svid.ChainFile
	keyFile         = svid.KeyFile
	rootFile        = svid.RootsFile
)

// BootstrapInput is the input of Bootstrap.
type BootstrapInput struct {
	Node *corev3.Node
	// Socket is the absolute path of the xDS proxy's unix socket.
	Socket string
	// CertificateDir is the directory that Files writes to.
	CertificateDir string
	// TTL is the lifetime that the agent asks for.
	TTL time.Duration
}

// bootstrap is specified by gRPC's proposals A27 and A29, and A36 for servers.
type bootstrap struct {
	Servers              []server                       `json:"xds_servers"`
	Node                 json.RawMessage                `json:"node"`
	CertificateProviders map[string]certificateProvider `json:"certificate_providers"`
	ServerListener       string                         `json:"server_listener_resource_name_template"`
}

type server struct {
	URI         string        `json:"server_uri"`
	Credentials []credentials `json:"channel_creds"`
	Features    []string      `json:"server_features"`
}

type credentials struct {
	Type string `json:"type"`
}

type certificateProvider struct {
	Plugin string      `json:"plugin_name"`
	Config fileWatcher `json:"config"`
}

type fileWatcher struct {
	Certificate string `json:"certificate_file"`
	Key         string `json:"private_key_file"`
	Roots       string `json:"ca_certificate_file"`
	Refresh     string `json:"refresh_interval"`
}

// Bootstrap returns the content of the bootstrap file. The same input gives the same bytes.
func Bootstrap(in BootstrapInput) ([]byte, error) {
	node, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(in.Node)
	if err != nil {
		return nil, fmt.Errorf("bootstrap of proxyless gRPC: %w", err)
	}
	refresh := min(max(in.TTL/refreshes, minimumRefresh), maximumRefresh).Round(time.Second)
	out, err := json.MarshalIndent(bootstrap{
		Servers: []server{{URI: "unix://" + in.Socket, Credentials: []credentials{{Type: "insecure"}}, Features: []string{"xds_v3"}}},
		Node:    node,
		CertificateProviders: map[string]certificateProvider{provider: {Plugin: "file_watcher", Config: fileWatcher{
			Certificate: filepath.Join(in.CertificateDir, certificateFile), Key: filepath.Join(in.CertificateDir, keyFile),
			Roots: filepath.Join(in.CertificateDir, rootFile), Refresh: fmt.Sprintf("%ds", int(refresh.Seconds())),
		}}},
		ServerListener: listenerTemplate,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("bootstrap of proxyless gRPC: %w", err)
	}
	return append(out, '\n'), nil
}
