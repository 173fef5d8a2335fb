package upstream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
)

// CheckAddress returns what is wrong with a host:port.
func CheckAddress(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s: is required; name the service as host:port", field)
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil || host == "" || port == "" || strings.Contains(value, "/") {
		return fmt.Errorf("%s: %q is no host:port", field, value)
	}
	return nil
}

// CheckPair returns what is wrong with the fields of a certificate and its key, of which neither or both are set.
func CheckPair(certFile, keyFile string) error {
	if (certFile == "") != (keyFile == "") {
		return errors.New("certFile, keyFile: only one of them is set; set both, or neither")
	}
	return nil
}

// TLSConfig is how the ca and a service know each other. Exactly one of ServerName and Identity is set.
type TLSConfig struct {
	// ServerName is the DNS name or IP address that the service's certificate must have.
	ServerName string
	// Identity is the SPIFFE ID that it must have.
	Identity spiffeid.ID
	// CAFile verifies the service. Without it, a ServerName is verified by the roots of the operating system and an
	// Identity by those of Own.
	CAFile string
	// CertFile and KeyFile are presented to the service; they need a CAFile. Without them Own's certificate is.
	CertFile, KeyFile string
	// Own is the ca's own certificate with the roots of the mesh; nil if there is none.
	Own   tlsconf.Source
	Clock clock.Clock
	Log   *slog.Logger
}

// TLS returns the configuration of a client, and the files to follow, which are nil if it has none. Each handshake
// reads the files anew.
func TLS(c TLSConfig) (*tls.Config, *tlsconf.Files, error) {
	var files *tlsconf.Files
	source := c.Own
	if c.CAFile != "" {
		files = tlsconf.NewFiles(tlsconf.FilesConfig{CertFile: c.CertFile, KeyFile: c.KeyFile, RootFile: c.CAFile, Clock: c.Clock, Log: c.Log})
		source = files
	} else if c.CertFile != "" {
		return nil, nil, errors.New("caFile: is required where certFile is set; name the file that verifies the service")
	}
	var cfg *tls.Config
	switch {
	case c.ServerName != "" && source == c.Own:
		// Without VerifyConnection, the roots are those of the operating system.
		cfg = &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS13}
	case c.ServerName != "":
		cfg = tlsconf.ClientNamed(source, c.ServerName)
	case source == nil:
		return nil, nil, errors.New("caFile: is required; name the file that verifies the service")
	default:
		cfg = tlsconf.Client(source, c.Identity)
	}
	if c.Own != nil && c.CertFile == "" {
		cfg.GetClientCertificate = tlsconf.Client(c.Own).GetClientCertificate
	}
	return cfg, files, nil
}
