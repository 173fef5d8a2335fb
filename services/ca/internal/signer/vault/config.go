package vault

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of a Config. The timeout is that of package guard, because it ends earlier than an agent's patience.
const (
	DefaultMount           = "pki"
	DefaultIssuerRef       = "default"
	DefaultTimeout         = 5 * time.Second
	DefaultRefreshInterval = 30 * time.Second

	// DefaultKubernetesTokenFile is where a Pod finds the token of its service account.
	DefaultKubernetesTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
)

// Config of an Issuer says where Vault is, what in it signs, and how the ca logs in. Secrets are in files, which are
// read again whenever they are used.
type Config struct {
	// Address is Vault's URL, https://HOST[:PORT][/PATH].
	Address string `json:"address"`
	// CAFile has the certificates that verify Vault's; without it, those of the operating system do.
	CAFile string `json:"caFile,omitempty"`
	// ServerName is the name that Vault's certificate must have, if that is not the host of Address.
	ServerName string `json:"serverName,omitempty"`
	// Namespace of Vault Enterprise that has the PKI engine and the login.
	Namespace string `json:"namespace,omitempty"`
	// Mount is the path of the PKI secrets engine.
	Mount string `json:"mount,omitempty"`
	// IssuerRef is the name or id of the issuer in the PKI engine. The default follows the engine's default issuer.
	IssuerRef string `json:"issuerRef,omitempty"`
	// Role of the PKI engine that signs leaves. A MinterConfig has none.
	Role string `json:"role,omitempty"`
	// Timeout bounds each operation: a certificate with the login that it may need, or a look at the issuer.
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// RefreshInterval is how often an Issuer reads its issuer's certificates, CRL and role again.
	RefreshInterval metav1.Duration `json:"refreshInterval,omitempty"`
	// CRL announces Vault's CRLs to the mesh. Proxies then want a current list of every authority in a
	// chain, and refuse all peers without one: the PKI engine needs auto_rebuild=true in config/crl, and all
	// authorities with their keys. Without CRL, a certificate that is revoked in Vault is valid until it
	// ends.
	CRL bool `json:"crl,omitempty"`
	// Auth is how the ca logs in.
	Auth Auth `json:"auth"`
}

// MinterConfig is the Config of a Minter.
type MinterConfig Config

// Auth is how the ca logs in to Vault. Exactly one field is set.
type Auth struct {
	Token      *TokenAuth      `json:"token,omitempty"`
	AppRole    *AppRoleAuth    `json:"appRole,omitempty"`
	Kubernetes *KubernetesAuth `json:"kubernetes,omitempty"`
	TLS        *TLSAuth        `json:"tls,omitempty"`
}

// TokenAuth uses a token that something else, such as Vault's agent, puts into a file.
type TokenAuth struct {
	File string `json:"file"`
}

// AppRoleAuth logs in by Vault's AppRole method.
type AppRoleAuth struct {
	// Mount is the path of the auth method, approle by default.
	Mount        string `json:"mount,omitempty"`
	RoleIDFile   string `json:"roleIDFile"`
	SecretIDFile string `json:"secretIDFile"`
}

// KubernetesAuth logs in with the token of a Kubernetes service account.
type KubernetesAuth struct {
	// Mount is the path of the auth method, kubernetes by default.
	Mount string `json:"mount,omitempty"`
	// Role is the role of the auth method.
	Role string `json:"role"`
	// TokenFile has the token, DefaultKubernetesTokenFile by default. A projected token should have Vault as audience.
	TokenFile string `json:"tokenFile,omitempty"`
}

// TLSAuth logs in with a client certificate, by Vault's method cert.
type TLSAuth struct {
	// Mount is the path of the auth method, cert by default.
	Mount    string `json:"mount,omitempty"`
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// Name is the role of the auth method; without it Vault tries all of them.
	Name string `json:"name,omitempty"`
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	c.Mount, c.IssuerRef = cmp.Or(c.Mount, DefaultMount), cmp.Or(c.IssuerRef, DefaultIssuerRef)
	c.Timeout.Duration = cmp.Or(c.Timeout.Duration, DefaultTimeout)
	c.RefreshInterval.Duration = cmp.Or(c.RefreshInterval.Duration, DefaultRefreshInterval)
	if a := c.Auth.AppRole; a != nil {
		filled := *a
		filled.Mount = cmp.Or(a.Mount, "approle")
		c.Auth.AppRole = &filled
	}
	if a := c.Auth.Kubernetes; a != nil {
		filled := *a
		filled.Mount, filled.TokenFile = cmp.Or(a.Mount, "kubernetes"), cmp.Or(a.TokenFile, DefaultKubernetesTokenFile)
		c.Auth.Kubernetes = &filled
	}
	if a := c.Auth.TLS; a != nil {
		filled := *a
		filled.Mount = cmp.Or(a.Mount, "cert")
		c.Auth.TLS = &filled
	}
	return c
}

// Bounds of the durations.
const (
	minTimeout, maxTimeout = 100 * time.Millisecond, time.Minute
	minRefresh, maxRefresh = time.Second, time.Hour
)

// Check returns everything that is wrong with the configuration, joined. It reads no files.
func (c *Config) Check() error {
	found := c.problems()
	found.required("role", c.Role, "name the role of the PKI engine that signs leaves")
	return errors.Join(found...)
}

// Check returns everything that is wrong with the configuration, joined. It reads no files.
func (c *MinterConfig) Check() error {
	found := (*Config)(c).problems()
	if c.Role != "" {
		found.addf("role: signs leaves, and an intermediate is signed without one; remove it")
	}
	return errors.Join(found...)
}

// problems are those of both kinds.
func (c *Config) problems() problems {
	var found problems
	found.address(c.Address)
	if c.ServerName != "" && strings.ContainsAny(c.ServerName, ":/ ") && net.ParseIP(c.ServerName) == nil {
		found.addf("serverName: %q is no host name; write the name in Vault's certificate, without a port", c.ServerName)
	}
	found.path("mount", c.Mount)
	found.path("namespace", c.Namespace)
	found.segment("issuerRef", c.IssuerRef)
	found.segment("role", c.Role)
	found.duration("timeout", c.Timeout.Duration, minTimeout, maxTimeout)
	found.duration("refreshInterval", c.RefreshInterval.Duration, minRefresh, maxRefresh)
	found.auth(c.Auth)
	return found
}

type problems []error

func (p *problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) address(text string) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		p.addf("address: is required; write Vault's URL, such as https://vault.example.org:8200")
	case err != nil:
		// The error repeats the text, which may have a password.
		p.addf("address: is no URL; write https://HOST:PORT")
	case u.Scheme != "https":
		p.addf("address: has the scheme %q, wanted https: tokens are not sent in the clear; have Vault listen with TLS", u.Scheme)
	case u.Hostname() == "":
		p.addf("address: has no host; write https://HOST:PORT")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		p.addf("address: has a user, a query or a fragment; write only https://HOST:PORT, and how to log in under auth")
	}
}

// Names in Vault's paths. Each is in the path of a URL as it stands.
var (
	segmentPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	pathPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)
)

func (p *problems) segment(field, value string) {
	if value != "" && !segmentPattern.MatchString(value) {
		p.addf("%s: %q is no name in Vault; use letters, digits, _, . and -", field, value)
	}
}

func (p *problems) path(field, value string) {
	if value != "" && !pathPattern.MatchString(value) {
		p.addf("%s: %q is no path in Vault; write it without / at its ends, and without v1", field, value)
	}
}

func (p *problems) duration(field string, d, least, most time.Duration) {
	if d != 0 && (d < least || d > most) {
		p.addf("%s: %s is not between %s and %s; set it there, or remove it for the default", field, d, least, most)
	}
}

func (p *problems) required(field, value, remedy string) {
	if value == "" {
		p.addf("%s: is required; %s", field, remedy)
	}
}

func (p *problems) auth(a Auth) {
	var set []string
	if t := a.Token; t != nil {
		set = append(set, "token")
		p.required("auth.token.file", t.File, "name the file with the token")
	}
	if r := a.AppRole; r != nil {
		set = append(set, "appRole")
		p.path("auth.appRole.mount", r.Mount)
		p.required("auth.appRole.roleIDFile", r.RoleIDFile, "name the file with the role id")
		p.required("auth.appRole.secretIDFile", r.SecretIDFile, "name the file with the secret id")
	}
	if k := a.Kubernetes; k != nil {
		set = append(set, "kubernetes")
		p.path("auth.kubernetes.mount", k.Mount)
		p.required("auth.kubernetes.role", k.Role, "name the role of Vault's Kubernetes auth method")
	}
	if t := a.TLS; t != nil {
		set = append(set, "tls")
		p.path("auth.tls.mount", t.Mount)
		p.required("auth.tls.certFile", t.CertFile, "name the file with the client certificate")
		p.required("auth.tls.keyFile", t.KeyFile, "name the file with its key")
	}
	switch {
	case len(set) == 0:
		p.addf("auth: is required; set one of token, appRole, kubernetes, tls")
	case len(set) > 1:
		p.addf("auth: has %s; keep one of them", strings.Join(set, ", "))
	}
}
