package istio

import (
	"cmp"
	"errors"
	"net"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/ca/internal/signer/upstream"
)

// Config says where the other CA is, and what verifies its certificates.
type Config struct {
	// Address is host:port, such as istiod.istio-system.svc:15012.
	Address string `json:"address"`
	// RootsFile has the roots that verify the issued certificates; they are announced to the mesh. It is mostly the
	// mount of the ConfigMap istio-ca-root-cert. What the other CA calls its roots is not believed.
	RootsFile string `json:"rootsFile"`
	// CAFile verifies the certificate of the connection; RootsFile by default.
	CAFile string `json:"caFile,omitempty"`
	// ServerName is the DNS name or IP address of that certificate; the host of Address by default.
	ServerName string `json:"serverName,omitempty"`
	// ClusterID is sent as metadata, for an istiod of several clusters.
	ClusterID string `json:"clusterID,omitempty"`
	// CertSigners are the names that workloads may ask for by the metadata field CertSigner, which is passed on; others
	// are refused.
	CertSigners []string `json:"certSigners,omitempty"`
	// Timeout of a call; 10 s by default.
	Timeout metav1.Duration `json:"timeout,omitempty"`
}

// Check returns all that is wrong with the configuration.
func (c *Config) Check() error {
	problems := []error{upstream.CheckAddress("address", c.Address), upstream.CheckTimeout(c.Timeout.Duration)}
	if c.RootsFile == "" {
		problems = append(problems, errors.New("rootsFile: is required; name the file with the other CA's roots, such as the mount of "+
			"ConfigMap istio-ca-root-cert"))
	}
	for _, r := range c.ClusterID {
		if r < 0x20 || r > 0x7e {
			problems = append(problems, errors.New("clusterID: has a character that a header cannot have"))
			break
		}
	}
	if slices.Contains(c.CertSigners, "") {
		problems = append(problems, errors.New("certSigners: has an empty name; remove it"))
	}
	return errors.Join(problems...)
}

func (c *Config) serverName() string {
	host, _, _ := net.SplitHostPort(c.Address)
	return cmp.Or(c.ServerName, host)
}
