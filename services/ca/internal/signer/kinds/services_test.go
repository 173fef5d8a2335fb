package kinds

import (
	"strings"
	"testing"
)

const header = "apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: other\n"

// TestSignersThatAreServices: the files of docs/guide/signers-services.md, and the paths of fields in errors.
func TestSignersThatAreServices(t *testing.T) {
	fingerprint := strings.Repeat("ab", 32)
	for name, text := range map[string]string{
		"service": "service: {address: 'signer:443', serverName: signer, caFile: /ca, capabilities: [validity, needsToken]}",
		"socket":  "service: {address: unix:///run/signer.sock}",
		"istio":   "istio: {address: 'istiod:15012', rootsFile: /roots, clusterID: a, certSigners: [x]}",
		"step-ca": "stepCA: {url: 'https://step', fingerprints: [" + fingerprint +
			"], provisioner: p, jwk: {keyFile: /k}, timeout: 5s, crl: true}",
	} {
		s, err := Parse([]byte(header + text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := Open(s, 1, Env{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, says := range map[string]string{
		"service: {}": "service.address: is required", "istio: {}": "istio.rootsFile: is required", "stepCA: {}": "stepCA.url: is required",
		"istio: {token: x}": "unknown field", "istio: {}\nstepCA: {}": "are set together",
	} {
		if _, err := Parse([]byte(header + text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", text, err, says)
		}
	}
}
