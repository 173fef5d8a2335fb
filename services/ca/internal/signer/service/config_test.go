package service

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConfigs(t *testing.T) {
	good := Config{Address: "signer:443", ServerName: "signer", CAFile: "/ca"}
	for name, tc := range map[string]struct {
		change func(*Config)
		says   []string
	}{
		"by name":               {},
		"by the system's roots": {change: func(c *Config) { c.CAFile = "" }},
		"by the mesh's roots":   {change: func(c *Config) { c.ServerName, c.CAFile, c.Identity = "", "", "spiffe://cluster.local/x" }},
		"a socket":              {change: func(c *Config) { *c = Config{Address: "unix:///run/signer.sock"} }},
		"nothing": {change: func(c *Config) { *c = Config{} }, says: []string{
			"address: is required", "serverName, identity: one is required",
		}},
		"no port":                    {change: func(c *Config) { c.Address = "signer" }, says: []string{`address: "signer" is no host:port`}},
		"a URL":                      {change: func(c *Config) { c.Address = "https://signer:443" }, says: []string{"is no host:port"}},
		"both names":                 {change: func(c *Config) { c.Identity = "spiffe://cluster.local/x" }, says: []string{"both are set"}},
		"no SPIFFE ID":               {change: func(c *Config) { c.ServerName, c.Identity = "", "signer" }, says: []string{"is no SPIFFE ID"}},
		"a certificate without key":  {change: func(c *Config) { c.CertFile = "/cert" }, says: []string{"only one of them is set"}},
		"a certificate without root": {change: func(c *Config) { c.CertFile, c.KeyFile, c.CAFile = "/c", "/k", "" }, says: []string{"caFile"}},
		"long patience":              {change: func(c *Config) { c.Timeout = metav1.Duration{Duration: time.Hour} }, says: []string{"timeout: is 1h0m0s"}},
		"an unknown capability":      {change: func(c *Config) { c.Capabilities = []string{"magic"} }, says: []string{`"magic" is not known`}},
		"a socket with TLS":          {change: func(c *Config) { c.Address = "unix:///run/x" }, says: []string{"has no TLS; remove them"}},
		"a socket that moves":        {change: func(c *Config) { *c = Config{Address: "unix://x"} }, says: []string{"no absolute path"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			if tc.change != nil {
				tc.change(&c)
			}
			err := c.Check()
			if (err == nil) != (len(tc.says) == 0) {
				t.Fatalf("got %v", err)
			}
			for _, part := range tc.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: lacks %q", err, part)
				}
			}
		})
	}
}
