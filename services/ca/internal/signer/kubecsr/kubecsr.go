// Package kubecsr gets leaves by Kubernetes' CertificateSigningRequests (certificates.k8s.io/v1), as Istio's custom CA
// integration does: a controller of the cluster signs them, cert-manager's for example. The metadata field CertSigner
// of a request chooses the signer, which is DOMAIN/CertSigner.
package kubecsr

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
)

const (
	// minSeconds is the shortest lifetime that the API server accepts in spec.expirationSeconds, maxSeconds what fits.
	minSeconds, maxSeconds = 600, 1<<31 - 1
	// maxSignerName is the longest spec.signerName.
	maxSignerName = 571
)

// Config is the part of the signer file for this kind.
type Config struct {
	// Domain of all signer names, as Istio's CERT_SIGNER_DOMAIN: clusterissuers.cert-manager.io for example.
	Domain string `json:"domain"`
	// Signer signs for workloads that name none: DOMAIN/Signer. If it is empty, each request must name one of Profiles.
	Signer string `json:"signer,omitempty"`
	// Roots verify what Signer issues, and the signers of Profiles without roots of their own.
	Roots kuberequest.Roots `json:"roots,omitzero"`
	// Profiles are the signers that workloads can name.
	Profiles []Profile `json:"profiles,omitempty"`
	// Approve makes the ca approve its own requests, as istiod does. Otherwise something else must.
	Approve bool `json:"approve,omitempty"`

	kuberequest.Config
}

// Profile is a signer that workloads of some namespaces can name by metadata CertSigner, which Istio's agents take from
// ISTIO_META_CERT_SIGNER.
type Profile struct {
	Name string `json:"name"`
	// Namespaces are those of the workloads; "*" is all.
	Namespaces []string `json:"namespaces"`
	// Roots verify what this signer issues. Every workload of the mesh trusts them.
	Roots *kuberequest.Roots `json:"roots,omitempty"`
}

// Check returns all that is wrong, each with its field and a remedy.
func (c *Config) Check() error {
	errs := []error{c.Config.Check()}
	if len(validation.IsDNS1123Subdomain(c.Domain)) > 0 || !strings.Contains(c.Domain, ".") {
		errs = append(errs, fmt.Errorf("domain: %q is no domain of signers; write what is before the slash in spec.signerName, such as "+
			"clusterissuers.cert-manager.io", c.Domain))
	}
	if c.Domain == "kubernetes.io" || strings.HasSuffix(c.Domain, ".kubernetes.io") {
		errs = append(errs, fmt.Errorf("domain: the signers of %s issue for Kubernetes' own API and not for workloads; name the domain of a "+
			"signer of your own", c.Domain))
	}
	if c.Signer != "" && (len(validation.IsDNS1123Subdomain(c.Signer)) > 0 || len(c.Domain)+1+len(c.Signer) > maxSignerName) {
		errs = append(errs, fmt.Errorf("signer: %q cannot be a signer of %s; write what is behind the slash in spec.signerName",
			cut(c.Signer), c.Domain))
	}
	if c.Signer == "" && len(c.Profiles) == 0 {
		errs = append(errs, errors.New("signer: is required without profiles; name the signer of workloads that name none"))
	}
	errs = append(errs, kuberequest.CheckProfiles(c.Profiles, func(p Profile) (string, []string) { return p.Name, p.Namespaces }))
	if c.Signer != "" || c.Roots != (kuberequest.Roots{}) || slices.ContainsFunc(c.Profiles, func(p Profile) bool { return p.Roots == nil }) {
		errs = append(errs, c.Roots.Check("roots", false))
	}
	for i, p := range c.Profiles {
		if len(c.Domain)+1+len(p.Name) > maxSignerName {
			errs = append(errs, fmt.Errorf("profiles[%d].name: with the domain it is longer than %d characters, the limit of "+
				"spec.signerName; name a signer with a shorter one", i, maxSignerName))
		}
		if p.Roots != nil {
			errs = append(errs, p.Roots.Check(fmt.Sprintf("profiles[%d].roots", i), false))
		}
	}
	return errors.Join(errs...)
}

func cut(name string) string { return name[:min(len(name), 64)] }

// New makes an Issuer without asking the API server, which is reached as cluster says.
func New(cfg Config, d signer.Deps, cluster *rest.Config) (*kuberequest.Issuer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	var targets []kuberequest.Target
	if cfg.Signer != "" {
		targets = append(targets, target(cfg, Profile{}, cfg.Signer))
	}
	for _, p := range cfg.Profiles {
		targets = append(targets, target(cfg, p, p.Name))
	}
	return kuberequest.New(cfg.Config, d, cluster, kuberequest.Kind{
		Name: "CertificateSigningRequest", Resource: certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"),
		Approve: cfg.Approve, Approval: "approval",
		ApproveRights: fmt.Sprintf("the verb update on certificatesigningrequests/approval, and the verb approve on signers of "+
			"certificates.k8s.io with resourceNames such as %s/*", cfg.Domain),
		Judge: judge, MinSeconds: minSeconds,
	}, targets)
}

// target is the signer of a profile, or that of requests without one.
func target(cfg Config, p Profile, name string) kuberequest.Target {
	roots, full := cfg.Roots, cfg.Domain+"/"+name
	if p.Roots != nil {
		roots = *p.Roots
	}
	t := kuberequest.Target{Profile: p.Name, Namespaces: p.Namespaces, Signer: "the signer " + full, Roots: roots,
		Spec: func(a kuberequest.Ask) map[string]any {
			return map[string]any{
				"request": base64.StdEncoding.EncodeToString(a.CSR), "signerName": full, "expirationSeconds": min(a.Seconds, maxSeconds),
				"usages": usages(a),
			}
		}}
	if p.Name != "" {
		t.Alias = full
	}
	return t
}

func usages(a kuberequest.Ask) []any {
	list := []any{string(certificatesv1.UsageDigitalSignature), string(certificatesv1.UsageServerAuth), string(certificatesv1.UsageClientAuth)}
	if a.RSA {
		list = append(list, string(certificatesv1.UsageKeyEncipherment))
	}
	return list
}

// judge reads the status of a CertificateSigningRequest.
func judge(s kuberequest.Status) (issued bool, _ *signer.Error) {
	if c := s.Condition(string(certificatesv1.CertificateDenied)); c.True() {
		return false, signer.Errorf(signer.Refused, "the CertificateSigningRequest was denied: %s; ask who approves requests for this signer",
			c.Words())
	}
	if c := s.Condition(string(certificatesv1.CertificateFailed)); c.True() {
		return false, signer.Errorf(signer.Refused, "the signer failed the CertificateSigningRequest: %s; mend what its controller says",
			c.Words())
	}
	return len(s.Certificate) > 0, nil
}
