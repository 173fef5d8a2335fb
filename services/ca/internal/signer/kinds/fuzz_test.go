package kinds

import (
	"testing"
)

// FuzzParse: a signer file is refused, or has a name and exactly one signer.
func FuzzParse(f *testing.F) {
	head := "apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: mesh\n"
	for _, text := range []string{
		"", head, head + "caCerts: {directory: /etc/cacerts}\n", head + "caCerts: {directory: /etc/cacerts}\nunknown: 1\n",
		head + "intermediate: {keys: {directory: {dir: /keys}}, selfSigned: {}}\nlimits: {inFlight: 64, timeout: 5s}\n",
		head + "service: {address: 'unix:///run/signer.sock'}\ncaCerts: {directory: /etc/cacerts}\n",
		head + "stepCA: {url: https://step, fingerprints: [a]}\n", "a: &a [*a]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		chosen := 0
		for _, there := range []bool{
			s.Intermediate != nil, s.Service != nil, s.Istio != nil, s.StepCA != nil, s.Vault != nil, s.KubernetesCSR != nil, s.CertManager != nil,
			s.CACerts != nil,
		} {
			if there {
				chosen++
			}
		}
		if chosen != 1 || s.Name == "" || s.Kind != Kind || s.APIVersion != APIVersion {
			t.Errorf("%d signers of %+v", chosen, s)
		}
	})
}
