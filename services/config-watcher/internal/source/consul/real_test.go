package consul

import (
	"testing"

	"fairlead.dev/pkg/testkit/consultest"
)

// A registry follows a real agent: registrations, health, and what is gone.
func TestRealRegistryIsFollowed(t *testing.T) {
	agent := consultest.Dev(t)
	r := newRig(t)
	r.file("east.yaml", "address: "+agent.URL+"\ndatacenter: dc1\nrules: [{services: ['*'], namespace: consul}]\n")
	agent.Register(t, consultest.Instance("n1", "web", "web-1", "passing"))
	r.run(func(c *Config) { c.Follow = Follow })
	r.mesh.becomes("[consul web.service.consul:1]")
	r.rows("east SYNCED")
	agent.Register(t, consultest.Instance("n2", "web", "web-2", "critical"))
	agent.Register(t, consultest.Instance("n2", "db", "db-1", "passing"))
	r.mesh.becomes("[consul db.service.consul:1 consul web.service.consul:2]")
	agent.Deregister(t, "n2", "db-1")
	r.mesh.becomes("[consul web.service.consul:2]")
	agent.Kill()
	r.rows("east AWAY")
	r.mesh.becomes("[consul web.service.consul:2]")
}
