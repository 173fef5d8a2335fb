// Package certmanager gets leaves by cert-manager's CertificateRequests (cert-manager.io/v1), as istio-csr does: each
// names an Issuer or ClusterIssuer, cert-manager's own or that of another group.
package certmanager

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
)

const (
	// group of cert-manager's own kinds.
	group = "cert-manager.io"
	// minSeconds is the shortest lifetime that is asked for. cert-manager has no limit; issuers may.
	minSeconds = 60
)

// Config is the part of the signer file for this kind.
type Config struct {
	// Namespace is where CertificateRequests are made. An Issuer must be there; a ClusterIssuer is everywhere.
	Namespace string `json:"namespace"`
	// IssuerRef signs for workloads that name no signer. If its name is empty, each request must name one of Profiles.
	IssuerRef IssuerRef `json:"issuerRef,omitzero"`
	// Roots verify what IssuerRef issues, and the issuers of Profiles without roots of their own. status.ca of a
	// CertificateRequest is never believed.
	Roots kuberequest.Roots `json:"roots,omitzero"`
	// Profiles are the issuers that workloads can name.
	Profiles []Profile `json:"profiles,omitempty"`
	// Approve makes the ca approve its own requests. cert-manager's own approver does, unless its chart was told not to
	// (disableAutoApproval), for approver-policy.
	Approve bool `json:"approve,omitempty"`

	kuberequest.Config
}

// IssuerRef names an issuer.
type IssuerRef struct {
	Name string `json:"name"`
	// Kind is Issuer by default.
	Kind string `json:"kind,omitempty"`
	// Group is cert-manager.io by default.
	Group string `json:"group,omitempty"`
}

// Profile is an issuer that workloads of some namespaces can name by metadata CertSigner, which Istio's agents take
// from ISTIO_META_CERT_SIGNER.
type Profile struct {
	Name string `json:"name"`
	// Namespaces are those of the workloads; "*" is all.
	Namespaces []string  `json:"namespaces"`
	IssuerRef  IssuerRef `json:"issuerRef"`
	// Roots verify what this issuer issues. Every workload of the mesh trusts them.
	Roots *kuberequest.Roots `json:"roots,omitempty"`
}

// complete returns the reference with its defaults.
func (r IssuerRef) complete() IssuerRef {
	if r.Kind == "" {
		r.Kind = "Issuer"
	}
	if r.Group == "" {
		r.Group = group
	}
	return r
}

func (r IssuerRef) check(field string) error {
	r = r.complete()
	var errs []error
	if len(validation.IsDNS1123Subdomain(r.Name)) > 0 {
		errs = append(errs, fmt.Errorf("%s.name: %q is no name of an issuer; write that of the object that signs", field,
			r.Name[:min(len(r.Name), 64)]))
	}
	if r.Group == group && r.Kind != "Issuer" && r.Kind != "ClusterIssuer" {
		errs = append(errs, fmt.Errorf("%s.kind: %q is no kind of %s; write Issuer or ClusterIssuer, or the group of another kind", field,
			r.Kind, group))
	}
	if len(validation.IsDNS1123Subdomain(r.Group)) > 0 {
		errs = append(errs, fmt.Errorf("%s.group: %q is no API group; leave it out for cert-manager's own issuers", field, r.Group))
	}
	if len(validation.IsDNS1035Label(strings.ToLower(r.Kind))) > 0 {
		errs = append(errs, fmt.Errorf("%s.kind: %q is no kind; write that of the issuer", field, r.Kind))
	}
	return errors.Join(errs...)
}

// Check returns all that is wrong, each with its field and a remedy.
func (c *Config) Check() error {
	errs := []error{c.Config.Check()}
	if len(validation.IsDNS1123Label(c.Namespace)) > 0 {
		errs = append(errs, fmt.Errorf("namespace: %q is no name of a namespace; write where CertificateRequests are made, which is "+
			"where the Issuer is", c.Namespace))
	}
	if c.IssuerRef != (IssuerRef{}) || len(c.Profiles) == 0 {
		errs = append(errs, c.IssuerRef.check("issuerRef"))
	}
	errs = append(errs, kuberequest.CheckProfiles(c.Profiles, func(p Profile) (string, []string) { return p.Name, p.Namespaces }))
	if c.IssuerRef != (IssuerRef{}) || c.Roots != (kuberequest.Roots{}) || len(c.Profiles) == 0 ||
		slices.ContainsFunc(c.Profiles, func(p Profile) bool { return p.Roots == nil }) {
		errs = append(errs, c.Roots.Check("roots", true))
	}
	for i, p := range c.Profiles {
		errs = append(errs, p.IssuerRef.check(fmt.Sprintf("profiles[%d].issuerRef", i)))
		if p.Roots != nil {
			errs = append(errs, p.Roots.Check(fmt.Sprintf("profiles[%d].roots", i), true))
		}
	}
	return errors.Join(errs...)
}

// New makes an Issuer without asking the API server, which is reached as cluster says.
func New(cfg Config, d signer.Deps, cluster *rest.Config) (*kuberequest.Issuer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	var targets []kuberequest.Target
	if cfg.IssuerRef != (IssuerRef{}) {
		targets = append(targets, target(cfg, Profile{IssuerRef: cfg.IssuerRef}))
	}
	for _, p := range cfg.Profiles {
		targets = append(targets, target(cfg, p))
	}
	return kuberequest.New(cfg.Config, d, cluster, kuberequest.Kind{
		Name: "CertificateRequest", Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: "certificaterequests"},
		Namespace: cfg.Namespace, Approve: cfg.Approve, Approval: "status",
		ApproveRights: fmt.Sprintf("the verb update on certificaterequests/status in namespace %s, and the verb approve on signers of %s with "+
			"resourceNames such as clusterissuers.%s/NAME and issuers.%s/%s.NAME", cfg.Namespace, group, group, group, cfg.Namespace),
		Judge: judge, MinSeconds: minSeconds,
	}, targets)
}

// target is the issuer of a profile, or that of requests without one.
func target(cfg Config, p Profile) kuberequest.Target {
	roots, ref := cfg.Roots, p.IssuerRef.complete()
	if p.Roots != nil {
		roots = *p.Roots
	}
	return kuberequest.Target{Profile: p.Name, Namespaces: p.Namespaces, Signer: fmt.Sprintf("the %s %s of %s", ref.Kind, ref.Name, ref.Group),
		Roots: roots, Spec: func(a kuberequest.Ask) map[string]any {
			usages := []any{"digital signature", "server auth", "client auth"}
			if a.RSA {
				usages = append(usages, "key encipherment")
			}
			return map[string]any{
				"request": base64.StdEncoding.EncodeToString(a.CSR), "duration": (time.Duration(a.Seconds) * time.Second).String(), "usages": usages,
				"issuerRef": map[string]any{"name": ref.Name, "kind": ref.Kind, "group": ref.Group},
			}
		}}
}

// judge reads the status of a CertificateRequest.
func judge(s kuberequest.Status) (issued bool, _ *signer.Error) {
	if c := s.Condition("Denied"); c.True() {
		return false, signer.Errorf(signer.Refused, "the CertificateRequest was denied: %s; ask who approves requests for this issuer", c.Words())
	}
	if c := s.Condition("InvalidRequest"); c.True() {
		return false, signer.Errorf(signer.Refused, "the CertificateRequest is invalid: %s; see what the issuer accepts", c.Words())
	}
	ready := s.Condition("Ready")
	switch {
	case ready.True() && len(s.Certificate) == 0:
		return false, signer.Errorf(signer.Lied, "the CertificateRequest is Ready and has no certificate")
	case ready.Status == "False" && (ready.Reason == "Failed" || ready.Reason == "Denied"):
		return false, signer.Errorf(signer.Refused, "the issuer refused the CertificateRequest: %s; mend what it says", ready.Words())
	}
	return ready.True(), nil
}
