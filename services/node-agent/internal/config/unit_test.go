package config

import (
	"os"
	"strings"
	"testing"
)

// unitFile runs node-agent on a machine outside of Kubernetes. Its commands run in tests/deploy.
const unitFile = "../../../../deploy/machine/fairlead-node-agent.service"

// TestTheUnitReadsAMachinesFiles holds what the unit's command makes of the files of fairlead vm bootstrap.
func TestTheUnitReadsAMachinesFiles(t *testing.T) {
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name string) []string {
		_, after, _ := strings.Cut(string(text), "\n"+name+"=")
		line, _, _ := strings.Cut(after, "\n")
		return strings.Fields(line)
	}
	command := setting("ExecStart")
	args := command[3 : len(command)-1] // without "node-agent proxy sidecar" and $ISTIO_AGENT_FLAGS
	h := machine("", setting("Environment")...)
	files := map[string]string{
		envFile: strings.ReplaceAll(clusterEnv, "ISTIO_META_DNS_CAPTURE='true'\n", "") +
			"CA_ADDR='ca.istio-system.svc:15012'\nTRUST_DOMAIN='example.org'\n",
		"./etc/istio/config/mesh": "defaultConfig: {discoveryAddress: 'istiod.istio-system.svc:15012', concurrency: 3}\n",
	}
	h.ReadFile = host(files).ReadFile
	c := parse(t, flags(t, args...), h)
	for name, pair := range map[string][2]any{
		"namespace": {c.Namespace, "shop"}, "name": {c.PodName, "db-1"}, "service account": {c.ServiceAccount, "vm"},
		"trust domain": {c.TrustDomain.Name(), "example.org"}, "threads": {c.Concurrency, uint32(3)},
		"ca": {c.CAAddress, "ca.istio-system.svc:15012"}, "state directory": {c.StateDir, "/var/lib/istio/proxy"},
		"token": {c.TokenFile, "/run/secrets/tokens/istio-token"}, "roots": {c.RootCertFile, "/etc/certs/root-cert.pem"},
		"certificate": {c.CertificateDir, "/var/lib/istio/certs"}, "provisioned": {c.Secrets.ProvisionedDir, "/var/lib/istio/certs"},
		"service": {c.ProxyConfig.GetServiceCluster(), "machines.shop"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
}
