package chains

import (
	"testing"

	"github.com/zmap/zcrypto/x509"
	"github.com/zmap/zlint/v3"
	"github.com/zmap/zlint/v3/lint"

	"fairlead.dev/pkg/testkit"
)

// Reasons of several exceptions.
const (
	sent     = "every peer sends its intermediates, and there is no OCSP: leaves are valid for a day"
	policies = "policies are for contracts between organizations, and no peer asks for one"
	usages   = "an authority without usages limits none of its leaves'"
)

// exceptions are what zlint reports and the mesh wants so, by the name of the lint. Most are rules of the CA/Browser
// Forum or of browsers for authorities that the public trusts; nobody outside of the mesh trusts its root.
var exceptions = map[string]string{
	"e_ext_san_uniform_resource_identifier_present":  "the identity is a URI (SPIFFE X.509-SVID, 2)",
	"w_ext_subject_key_identifier_missing_sub_cert":  "a SHOULD of RFC 5280 (4.2.1.2) for leaves, which nothing looks for",
	"e_ca_country_name_missing":                      "a mesh is in no country; its organization is the trust domain",
	"n_ca_digital_signature_not_set":                 sent,
	"e_sub_cert_aia_missing":                         sent,
	"w_sub_ca_aia_missing":                           sent,
	"w_sub_cert_aia_does_not_contain_issuing_ca_url": sent,
	"n_mp_allowed_eku":                               usages,
	"n_sub_ca_eku_missing":                           usages,
	"e_sub_cert_cert_policy_empty":                   policies,
	"e_invalid_ca_certificate_policies":              policies,
	"e_sub_ca_certificate_policies_missing":          policies,
	"e_sub_cert_certificate_policies_missing":        policies,
	"e_sub_ca_crl_distribution_points_missing":       "proxies get lists of revoked certificates from the control plane",
	"w_ct_sct_policy_count_unsatisfied":              "no log of certificate transparency takes those of private authorities",
}

// judge lets zlint judge a certificate by all that it knows, and notes which exceptions were needed.
func judge(t *testing.T, what string, der []byte, needed map[string]bool) {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	testkit.NoError(t, err)
	found := map[string]string{}
	for name, result := range zlint.LintCertificate(c).Results {
		if result.Status < lint.Notice {
			continue
		}
		if _, ok := exceptions[name]; ok {
			needed[name] = true
			continue
		}
		found[name] = result.Details
	}
	for _, finding := range names(found) {
		t.Errorf("%s (%s): zlint: %s", what, c.Subject.String(), finding)
	}
}
