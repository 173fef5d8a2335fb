// Package program serves gRPC programs that speak xDS themselves and run beside
// the agent: it writes their bootstrap, and keeps the workload's key, certificate
// and roots in files, which is the one form that gRPC reads them in.
package program

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/proto/fairlead/contract"
)

const (
	// provider is the name by which xDS resources mean the workload's certificate.
	provider = "default"
	// listenerTemplate names the listeners of servers; their address stands for %s.
	listenerTemplate = "xds.istio.io/grpc/lds/inbound/%s"

	// refreshes is how often programs look at the files in the lifetime of a
	// certificate.
	refreshes      = 96
	minimumRefresh = time.Second
	// maximumRefresh holds whatever lifetime was asked for: the ca may give less, a day
	// unless its flags say otherwise.
	maximumRefresh  = contract.CertificateTTL / refreshes
	certificateFile = "cert-chain.pem"
	keyFile         = "key.pem"
	rootFile        = "root-cert.pem"
)

// BootstrapInput is what a bootstrap depends on.
type BootstrapInput struct {
	Node *corev3.Node
	// Socket is the absolute path of the relay's unix socket.
	Socket string
	// CertificateDir is where a Keeper writes.
	CertificateDir string
	// TTL is the lifetime of certificates.
	TTL time.Duration
}

// The file is described in gRPC's proposals A27 and A29, and A36 for servers.
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

// Bootstrap makes the file that GRPC_XDS_BOOTSTRAP names. The same input gives
// the same bytes.
func Bootstrap(in BootstrapInput) ([]byte, error) {
	node, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(in.Node)
	if err != nil {
		return nil, fmt.Errorf("bootstrap of gRPC programs: %w", err)
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
		return nil, fmt.Errorf("bootstrap of gRPC programs: %w", err)
	}
	return append(out, '\n'), nil
}
