package kubecsr

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

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
	good := decode(t, `{"domain": "clusterissuers.cert-manager.io", "signer": "istio-system", "approve": true, "timeout": "20s",
		"roots": {"configMap": {"namespace": "istio-system", "name": "signer-roots"}}, "limits": {"inFlight": 50, "requestsPerSecond": 200, "burst": 400},
		"profiles": [{"name": "foo", "namespaces": ["foo"], "roots": {"file": "/etc/foo/root.pem"}}, {"name": "bar", "namespaces": ["*"]}]}`)
	testkit.NoError(t, good.Check())
	if good.Timeout.Duration != 20*time.Second || good.Limits.InFlight != 50 {
		t.Errorf("decoded to %+v", good)
	}
	alone := decode(t, `{"domain": "a.b", "profiles": [{"name": "foo", "namespaces": ["foo"], "roots": {"file": "x"}}]}`)
	testkit.NoError(t, alone.Check())
	for text, wants := range map[string][]string{
		`{}`: {`domain: "" is no domain of signers; write what is before the slash`, "signer: is required without profiles"},
		`{"domain": "kubernetes.io", "signer": "legacy-unknown", "roots": {"file": "x"}}`: {
			"issue for Kubernetes' own API and not for workloads"},
		`{"domain": "a.b", "signer": "A B"}`: {`signer: "A B" cannot be a signer of a.b`, "roots: has 0 sources"},
		`{"domain": "a.b", "signer": "c", "roots": {"file": "x"}, "timeout": "1h", "profiles": [{"name": "x/y", "namespaces": []},
			{"name": "z", "namespaces": ["Z"]}, {"name": "z", "namespaces": ["z"], "roots": {"secret": {"namespace": "a", "name": "b"}}}]}`: {
			"timeout: is 1h0m0s", `profiles[0].name: "x/y" is no signer's name`, "profiles[0].namespaces: is required",
			`profiles[1].namespaces[0]: "Z" is no name`, "profiles[2].name: z is there twice", "profiles[2].roots.secret: is for cert-manager's"},
		`{"domain": "a.b", "profiles": [{"name": "` + strings.Repeat("a", 250) + `", "namespaces": ["*"]}]}`: {"roots: has 0 sources"},
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
	condition := func(kind string) kuberequest.Status {
		return kuberequest.Status{Conditions: []kuberequest.Condition{{Type: kind, Status: "True", Reason: "R", Message: "M"}}}
	}
	signed := condition("Approved")
	signed.Certificate = []byte("x")
	for name, tc := range map[string]struct {
		status kuberequest.Status
		issued bool
		says   string
	}{
		"nothing":  {},
		"approved": {status: condition("Approved")},
		"signed":   {status: signed, issued: true},
		"denied":   {status: condition("Denied"), says: "was denied: R: M"},
		"failed":   {status: condition("Failed"), says: "failed the CertificateSigningRequest: R: M"},
	} {
		issued, err := judge(tc.status)
		if issued != tc.issued || (err != nil) != (tc.says != "") ||
			err != nil && (err.Fault != signer.Refused || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: got %t and %v", name, issued, err)
		}
	}
}
