package consultest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// Management is a token with all rights.
const Management = "11111111-1111-1111-1111-111111111111"

// agentToken is what agents register themselves by. It is the same in tests.
const agentToken = Management

// serverName is the name in the certificates of servers.
const serverName = "server.dc1.consul"

// Cluster is three servers and a client agent, with TLS and ACLs that deny what no policy allows.
type Cluster struct {
	Servers [3]*Agent
	// Client is what programs ask. Its methods have all rights.
	Client *Agent
	// CA verifies all of them, in PEM.
	CA []byte
}

// certificates writes those of a server, and returns the settings that name them, how clients verify it, and the CA.
func certificates(t testing.TB) (files map[string]any, verify *tls.Config, root []byte) {
	t.Helper()
	dir, ca := t.TempDir(), testkit.PKI(t)
	chain, key := ca.NewServer(serverName, "localhost")
	testkit.WriteFile(t, filepath.Join(dir, "cert.pem"), chain)
	testkit.WriteFile(t, filepath.Join(dir, "key.pem"), key)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	files = map[string]any{
		"ca_file": ca.WriteRoot(dir), "cert_file": filepath.Join(dir, "cert.pem"), "key_file": filepath.Join(dir, "key.pem"),
	}
	return files, &tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}, testkit.CertPEM(ca.Cert)
}

// NewCluster starts a Cluster, which ends with the test.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	program(t)
	files, secure, root := certificates(t)
	files["verify_outgoing"] = true
	common := func(server bool, join ...string) settings {
		s := settings{
			"server": server, "retry_join": join, "retry_interval": "1s", "connect": map[string]any{"enabled": false},
			"acl": map[string]any{"enabled": true, "default_policy": "deny",
				"tokens": map[string]any{"initial_management": Management, "agent": agentToken}},
			"tls": map[string]any{
				"defaults":     files,
				"internal_rpc": map[string]any{"verify_server_hostname": true, "verify_incoming": true},
			},
		}
		if server {
			s["bootstrap_expect"] = 3
		}
		return s
	}
	c := &Cluster{CA: root}
	for i := range c.Servers {
		var join []string
		if i > 0 {
			join = []string{c.Servers[0].serf.String()}
		}
		c.Servers[i] = start(t, fmt.Sprintf("s%d", i+1), common(true, join...), secure)
		c.Servers[i].Token = Management
	}
	var join []string
	for _, s := range c.Servers {
		join = append(join, s.serf.String())
	}
	c.Client = start(t, "client", common(false, join...), secure)
	c.Client.Token = Management
	c.Client.await(t)
	return c
}

// Leader is the server that leads now.
func (c *Cluster) Leader(t testing.TB) *Agent {
	t.Helper()
	var leader *Agent
	testkit.Eventually(t, testkit.Patience, func() error {
		for _, s := range c.Servers {
			if s.process == nil {
				continue
			}
			answer, err := s.Do(http.MethodGet, "/v1/agent/self", nil)
			if err != nil {
				continue
			}
			var self struct {
				Stats struct {
					Consul struct{ Leader string }
				}
			}
			if err := json.Unmarshal(answer, &self); err == nil && self.Stats.Consul.Leader == "true" {
				leader = s
				return nil
			}
		}
		return errors.New("no server leads")
	})
	return leader
}

// policies numbers policies, whose names are unique.
var policies atomic.Uint64

// Token makes a token with the rules of a policy, in Consul's language.
func (c *Cluster) Token(t testing.TB, rules string) (secret, accessor string) {
	t.Helper()
	name := fmt.Sprintf("p%d", policies.Add(1))
	c.Client.Must(t, http.MethodPut, "/v1/acl/policy", map[string]string{"Name": name, "Rules": rules})
	var made struct{ SecretID, AccessorID string }
	answer := c.Client.Must(t, http.MethodPut, "/v1/acl/token", map[string]any{"Policies": []any{map[string]string{"Name": name}}})
	testkit.NoError(t, json.Unmarshal(answer, &made))
	// Each server knows it a moment later.
	for _, s := range c.Servers {
		if s.process == nil {
			continue
		}
		testkit.Eventually(t, testkit.Patience, func() error {
			with := *s
			with.Token = made.SecretID
			_, err := with.Do(http.MethodGet, "/v1/acl/token/self?stale", nil)
			return err
		})
	}
	return made.SecretID, made.AccessorID
}

// SetRules replaces the rules of the policy of a token that Token made.
func (c *Cluster) SetRules(t testing.TB, accessor, rules string) {
	t.Helper()
	var token struct{ Policies []struct{ ID, Name string } }
	testkit.NoError(t, json.Unmarshal(c.Client.Must(t, http.MethodGet, "/v1/acl/token/"+accessor, nil), &token))
	p := token.Policies[0]
	c.Client.Must(t, http.MethodPut, "/v1/acl/policy/"+p.ID, map[string]string{"ID": p.ID, "Name": p.Name, "Rules": rules})
}

// Revoke deletes a token.
func (c *Cluster) Revoke(t testing.TB, accessor string) {
	t.Helper()
	c.Client.Must(t, http.MethodDelete, "/v1/acl/token/"+accessor, nil)
}

// Snapshot is the state of all servers.
func (a *Agent) Snapshot(t testing.TB) []byte {
	t.Helper()
	return a.Must(t, http.MethodGet, "/v1/snapshot", nil)
}

// Restore takes all servers back to a Snapshot.
func (a *Agent) Restore(t testing.TB, snapshot []byte) {
	t.Helper()
	a.Must(t, http.MethodPut, "/v1/snapshot", snapshot)
}

// ReadAll are rules that let a token read all services and nodes.
const ReadAll = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
