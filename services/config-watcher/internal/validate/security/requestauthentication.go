package security

import (
	"net/url"
	"regexp"
	"strconv"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// maxKeysURI is the longest address of a key set, in bytes, as the schema of Istio's CRD has it.
const maxKeysURI = 2048

// outputHeader is the name of a header that a claim may be written to.
var outputHeader = regexp.MustCompile(`^[-_A-Za-z0-9]+$`)

// requestAuthentication follows https://istio.io/latest/docs/reference/config/security/request_authentication/.
func (c checker) requestAuthentication(ra *security.RequestAuthentication) {
	c.Attached(ra.Selector, ra.TargetRef, ra.TargetRefs)
	for at, r := range manifest.Items("spec.jwtRules", ra.JwtRules) {
		c.jwtRule(at, r)
	}
}

func (c checker) jwtRule(at string, r *security.JWTRule) {
	c.FailIf(r.Issuer == "" && r.JwksUri == "", at+".issuer", nil, "missing", "name the issuer of the tokens, or set jwksUri")
	c.Printable(at+".issuer", r.Issuer)
	c.filled(at+".audiences", r.Audiences, "audience")
	c.keysOf(at, r)
	for at, h := range manifest.Items(at+".fromHeaders", r.FromHeaders) {
		c.FailIf(h.Name == "", at+".name", nil, "missing", "name the header that has the token")
		c.inHeader(at+".name", h.Name)
		c.inHeader(at+".prefix", h.Prefix)
	}
	c.filled(at+".fromParams", r.FromParams, "parameter")
	c.filled(at+".fromCookies", r.FromCookies, "cookie")
	c.inHeader(at+".outputPayloadToHeader", r.OutputPayloadToHeader)
	for at, o := range manifest.Items(at+".outputClaimToHeaders", r.OutputClaimToHeaders) {
		c.FailIf(o.Claim == "", at+".claim", nil, "missing", "name the claim")
		switch {
		case o.Header == "":
			c.Fail(at+".header", nil, "missing", "name the header")
		case !outputHeader.MatchString(o.Header):
			c.Fail(at+".header", o.Header, "not a valid header name", "use letters, digits, '-' and '_'")
		}
	}
	c.Duration(at+".timeout", r.Timeout)
}

// keysOf checks where a rule's keys come from.
func (c checker) keysOf(at string, r *security.JWTRule) {
	if r.JwksUri != "" {
		u, err := url.Parse(r.JwksUri)
		switch {
		case len(r.JwksUri) > maxKeysURI:
			c.Fail(at+".jwksUri", nil, "longer than "+strconv.Itoa(maxKeysURI)+" bytes", "shorten it")
		case err != nil:
			c.Fail(at+".jwksUri", r.JwksUri, "not a URL", `write it like "https://example.com/keys.json"`)
		case u.Scheme != "http" && u.Scheme != "https":
			c.Fail(at+".jwksUri", r.JwksUri, "keys are fetched by HTTP alone", `begin it with "https://" or "http://"`)
		case u.Port() != "":
			_, err := strconv.ParseUint(u.Port(), 10, 16)
			c.FailIf(err != nil, at+".jwksUri", r.JwksUri, "not a port: "+strconv.Quote(u.Port()), "use 1 to 65535")
		}
	}
	c.FailIf(r.Jwks != "" && r.JwksUri != "", at+".jwks", nil, "only one of jwks and jwksUri can be set", "keep one of them")
	if r.Jwks != "" {
		c.keySet(at+".jwks", r.Jwks)
	}
}
