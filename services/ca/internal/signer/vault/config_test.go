package vault

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func good() Config {
	return Config{Address: "https://vault.test:8200", CAFile: "/ca.pem", Role: "mesh", Auth: Auth{Token: &TokenAuth{File: "/token"}}}
}

func TestConfigSaysEverythingThatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		says   []string
	}{
		"nothing":                  {func(*Config) {}, nil},
		"no address":               {func(c *Config) { c.Address = "" }, []string{"address: is required"}},
		"in the clear":             {func(c *Config) { c.Address = "http://vault.test:8200" }, []string{"address: has the scheme \"http\", wanted https"}},
		"host and port":            {func(c *Config) { c.Address = "vault.test:8200" }, []string{"address: has the scheme"}},
		"a socket":                 {func(c *Config) { c.Address = "unix:///run/vault" }, []string{"address: has the scheme"}},
		"no host":                  {func(c *Config) { c.Address = "https:///v1" }, []string{"address: has no host"}},
		"a password":               {func(c *Config) { c.Address = "https://me:hunter2@vault.test" }, []string{"address: has a user"}},
		"no URL, with a password":  {func(c *Config) { c.Address = "https://me:hunter2@vault.test:x" }, []string{"address: is no URL"}},
		"a server name with port":  {func(c *Config) { c.ServerName = "vault.test:8200" }, []string{"serverName: "}},
		"an address as name":       {func(c *Config) { c.ServerName = "fd00::1" }, nil},
		"no role":                  {func(c *Config) { c.Role = "" }, []string{"role: is required"}},
		"a mount that is nested":   {func(c *Config) { c.Mount = "teams/mesh/pki" }, nil},
		"a mount with a slash":     {func(c *Config) { c.Mount = "/pki" }, []string{"mount: \"/pki\" is no path"}},
		"a mount that climbs":      {func(c *Config) { c.Mount = "pki/../sys" }, []string{"mount: "}},
		"an issuer that is a path": {func(c *Config) { c.IssuerRef = "a/b" }, []string{"issuerRef: "}},
		"a role with a query":      {func(c *Config) { c.Role = "mesh?x=y" }, []string{"role: "}},
		"a role that climbs":       {func(c *Config) { c.Role = ".." }, []string{"role: "}},
		"a short timeout":          {func(c *Config) { c.Timeout.Duration = time.Millisecond }, []string{"timeout: 1ms is not between 100ms and 1m0s"}},
		"a negative interval":      {func(c *Config) { c.RefreshInterval.Duration = -time.Second }, []string{"refreshInterval: "}},
		"no login":                 {func(c *Config) { c.Auth = Auth{} }, []string{"auth: is required"}},
		"two logins": {func(c *Config) { c.Auth.AppRole = &AppRoleAuth{RoleIDFile: "/r", SecretIDFile: "/s"} },
			[]string{"auth: has token, appRole; keep one"}},
		"empty ones": {
			func(c *Config) {
				c.Auth = Auth{Token: &TokenAuth{}, AppRole: &AppRoleAuth{Mount: "/x"}, Kubernetes: &KubernetesAuth{}, TLS: &TLSAuth{}}
			},
			[]string{"auth.token.file: is required; name", "auth.appRole.mount: ", "auth.appRole.roleIDFile: ", "auth.appRole.secretIDFile: ",
				"auth.kubernetes.role: ", "auth.tls.certFile: ", "auth.tls.keyFile: ", "auth: has token, appRole, kubernetes, tls"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			tc.change(&c)
			err := c.Check()
			if (err == nil) != (tc.says == nil) {
				t.Fatalf("got %v, want %q", err, tc.says)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("got %v, want %q in it", err, s)
				}
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a password: %v", err)
			}
		})
	}
}

func TestConfigIsReadFromJSON(t *testing.T) {
	const text = `{"address": "https://v", "caFile": "/c", "serverName": "s", "namespace": "n", "mount": "m", "issuerRef": "i", "role": "r",
		"timeout": "3s", "refreshInterval": "1m", "auth": {"kubernetes": {"mount": "k", "role": "kr", "tokenFile": "/t"}}}`
	var got Config
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Auth.Kubernetes == nil || *got.Auth.Kubernetes != (KubernetesAuth{Mount: "k", Role: "kr", TokenFile: "/t"}) {
		t.Errorf("got the login %+v", got.Auth.Kubernetes)
	}
	got.Auth = Auth{}
	if want := (Config{Address: "https://v", CAFile: "/c", ServerName: "s", Namespace: "n", Mount: "m", IssuerRef: "i", Role: "r",
		Timeout: metav1.Duration{Duration: 3 * time.Second}, RefreshInterval: metav1.Duration{Duration: time.Minute}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDefaultsChangeNothingOfTheCallers(t *testing.T) {
	c := good()
	c.Auth = Auth{Kubernetes: &KubernetesAuth{Role: "r"}, AppRole: &AppRoleAuth{}, TLS: &TLSAuth{}}
	filled := c.withDefaults()
	if k := filled.Auth.Kubernetes; k.Mount != "kubernetes" || k.TokenFile != DefaultKubernetesTokenFile {
		t.Errorf("got %+v", k)
	}
	if filled.Auth.AppRole.Mount != "approle" || filled.Auth.TLS.Mount != "cert" || filled.Mount != "pki" || filled.IssuerRef != "default" {
		t.Errorf("got %+v", filled)
	}
	if *c.Auth.Kubernetes != (KubernetesAuth{Role: "r"}) {
		t.Errorf("the caller's configuration became %+v", c.Auth.Kubernetes)
	}
}
