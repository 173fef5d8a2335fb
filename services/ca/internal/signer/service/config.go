package service

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

// Config says where the server is, and what it can do.
type Config struct {
	// Address is host:port, or unix:///path of a socket, which needs none of the fields for TLS.
	Address string `json:"address"`
	// CAFile verifies the server's certificate. It may be left out where the operating system's roots verify
	// ServerName, or the mesh's roots verify Identity.
	CAFile string `json:"caFile,omitempty"`
	// ServerName is the DNS name or IP address of the server's certificate, Identity its SPIFFE ID. One of them is
	// required.
	ServerName string `json:"serverName,omitempty"`
	Identity   string `json:"identity,omitempty"`
	// CertFile and KeyFile are the ca's certificate for this server. Without them it presents its own, which it does
	// not have before the first signer has issued one.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Timeout of a call; 10 s by default.
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// Capabilities are what the server can do, of: extensions, namesBesideCSR, validity, revocation, needsToken. By
	// default the first three, which the contract asks for. The ca sends workloads' tokens to the server only if
	// needsToken is among them.
	Capabilities []string `json:"capabilities,omitempty"`
}

// The words of Config.Capabilities.
const (
	extensions     = "extensions"
	namesBesideCSR = "namesBesideCSR"
	validity       = "validity"
	revocation     = "revocation"
	needsToken     = "needsToken"
)

var words = []string{extensions, namesBesideCSR, validity, revocation, needsToken}

const unixScheme = "unix://"

// Check returns all that is wrong with the configuration.
func (c *Config) Check() error {
	problems := []error{upstream.CheckPair(c.CertFile, c.KeyFile), upstream.CheckTimeout(c.Timeout.Duration)}
	if path, ok := strings.CutPrefix(c.Address, unixScheme); ok {
		problems = append(problems, c.checkSocket(path))
	} else {
		problems = append(problems, upstream.CheckAddress("address", c.Address), c.checkTLS())
	}
	for _, word := range c.Capabilities {
		if !slices.Contains(words, word) {
			problems = append(problems, fmt.Errorf("capabilities: %q is not known; choose of %s", word, strings.Join(words, ", ")))
		}
	}
	return errors.Join(problems...)
}

func (c *Config) checkSocket(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("address: %q has no absolute path; write unix:///path/of/socket", c.Address)
	}
	if c.CAFile+c.ServerName+c.Identity+c.CertFile+c.KeyFile != "" {
		return errors.New("caFile, serverName, identity, certFile, keyFile: a unix socket has no TLS; remove them, and protect the socket by " +
			"the mode of its directory")
	}
	return nil
}

func (c *Config) checkTLS() error {
	var problems []error
	switch {
	case c.ServerName == "" && c.Identity == "":
		problems = append(problems,
			errors.New("serverName, identity: one is required; write the DNS name or the SPIFFE ID of the server's certificate"))
	case c.ServerName != "" && c.Identity != "":
		problems = append(problems, errors.New("serverName, identity: both are set; keep the one that the server's certificate has"))
	case c.Identity != "":
		if _, err := spiffeid.FromString(c.Identity); err != nil {
			problems = append(problems, fmt.Errorf("identity: %q is no SPIFFE ID: %w", c.Identity, err))
		}
	}
	if c.CertFile != "" && c.CAFile == "" {
		problems = append(problems, errors.New("caFile: is required where certFile is set; name the file that verifies the server"))
	}
	return errors.Join(problems...)
}

func (c *Config) capabilities() signer.Capabilities {
	list := c.Capabilities
	if list == nil {
		list = []string{extensions, namesBesideCSR, validity}
	}
	has := func(word string) bool { return slices.Contains(list, word) }
	return signer.Capabilities{
		Extensions: has(extensions), NamesBesideCSR: has(namesBesideCSR), Validity: has(validity), Revocation: has(revocation),
		Token: has(needsToken), Remote: true,
	}
}
