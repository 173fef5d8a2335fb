package certmanager

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
)

func decode(t *testing.T, text string) Config {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	var c Config
	testkit.NoError(t, d.Decode(&c))
	return c
}

func TestTheConfigurationIsChecked(t *testing.T) {
	for _, text := range []string{
		`{"namespace": "istio-system", "issuerRef": {"name": "istio-ca"},
			"roots": {"secret": {"namespace": "istio-system", "name": "istio-ca"}}}`,
		`{"namespace": "istio-system", "issuerRef": {"name": "pca", "kind": "AWSPCAClusterIssuer", "group": "awspca.cert-manager.io"},
			"roots": {"file": "/etc/roots.pem"}, "approve": true, "limits": {"inFlight": 10}}`,
		`{"namespace": "istio-system", "profiles": [{"name": "foo", "namespaces": ["foo"], "issuerRef": {"name": "foo", "kind": "ClusterIssuer"},
			"roots": {"configMap": {"namespace": "a", "name": "b", "key": "ca.crt"}}}]}`,
	} {
		c := decode(t, text)
		testkit.NoError(t, c.Check())
		if _, err := New(c, signer.Deps{}, nil); err == nil || !strings.Contains(err.Error(), "start the ca with --kubernetes") {
			t.Errorf("without Kubernetes: %v", err)
		}
	}
	for text, wants := range map[string][]string{
		`{}`: {`namespace: "" is no name`, `issuerRef.name: "" is no name of an issuer`, "roots: has 0 sources"},
		`{"namespace": "a", "issuerRef": {"name": "x", "kind": "Certificate"}, "roots": {"file": "x"}}`: {
			`issuerRef.kind: "Certificate" is no kind of cert-manager.io; write Issuer or ClusterIssuer`},
		`{"namespace": "a", "issuerRef": {"name": "x", "kind": "a b", "group": "-"}, "roots": {"file": "x"}}`: {
			`issuerRef.group: "-" is no API group`, `issuerRef.kind: "a b" is no kind`},
		`{"namespace": "a", "issuerRef": {"name": "x"}, "roots": {"file": "x"}, "profiles": [{"name": "y", "issuerRef": {"name": ""}}]}`: {
			`profiles[0].issuerRef.name: ""`, "profiles[0].namespaces: is required"},
	} {
		c := decode(t, text)
		err := c.Check()
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", text, err, want)
			}
		}
		if _, err := New(c, signer.Deps{}, &rest.Config{}); err == nil {
			t.Errorf("%s: New takes it", text)
		}
	}
}

func TestAStatusIsJudged(t *testing.T) {
	condition := func(kind, status, reason string) kuberequest.Status {
		return kuberequest.Status{Conditions: []kuberequest.Condition{{Type: kind, Status: status, Reason: reason, Message: "M"}}}
	}
	ready := condition("Ready", "True", "Issued")
	signed := ready
	signed.Certificate = []byte("x")
	early := condition("Ready", "False", "Pending")
	early.Certificate = []byte("x")
	for name, tc := range map[string]struct {
		status kuberequest.Status
		issued bool
		fault  signer.Fault
		says   string
	}{
		"nothing":             {},
		"approved":            {status: condition("Approved", "True", "R")},
		"pending":             {status: condition("Ready", "False", "Pending")},
		"not ready, but more": {status: early},
		"signed":              {status: signed, issued: true},
		"ready with nothing":  {status: ready, fault: signer.Lied, says: "has no certificate"},
		"denied":              {status: condition("Denied", "True", "R"), fault: signer.Refused, says: "was denied: R: M"},
		"invalid":             {status: condition("InvalidRequest", "True", "R"), fault: signer.Refused, says: "is invalid: R: M"},
		"failed":              {status: condition("Ready", "False", "Failed"), fault: signer.Refused, says: "Failed: M"},
		"ready is denied":     {status: condition("Ready", "False", "Denied"), fault: signer.Refused, says: "Denied: M"},
	} {
		issued, err := judge(tc.status)
		if issued != tc.issued || (err != nil) != (tc.fault != 0) ||
			err != nil && (err.Fault != tc.fault || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: got %t and %v", name, issued, err)
		}
	}
}
