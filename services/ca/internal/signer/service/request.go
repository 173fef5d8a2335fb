package service

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/lists"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

// signRequest writes a request in the words of the contract.
func signRequest(r *signer.Request, can signer.Capabilities, now time.Time) (*cav1.SignRequest, error) {
	t := r.Template
	key, err := x509.MarshalPKIXPublicKey(t.PublicKey)
	if err != nil {
		return nil, signer.Errorf(signer.Unsuitable, "the request's public key cannot be encoded: %w", err)
	}
	if can.Token && r.Token == "" {
		return nil, signer.Errorf(signer.Unsuitable, "the signer needs a token for every certificate; send one with the request")
	}
	if !can.NamesBesideCSR && len(r.CSR) == 0 {
		return nil, signer.Errorf(signer.Unsuitable, "the signer needs a CSR for every certificate; send one with the request")
	}
	out := &cav1.SignRequest{
		PublicKey: key, DnsSans: t.DNSNames, Ttl: durationpb.New(t.NotAfter.Sub(now)), Csr: r.CSR, Identity: r.Identity.String(),
		NotBefore: timestamppb.New(t.NotBefore), NotAfter: timestamppb.New(t.NotAfter), KeyUsages: uint32(t.KeyUsage), //nolint:gosec // bits
		Profile: r.Profile,
	}
	for _, u := range t.URIs {
		out.UriSans = append(out.UriSans, u.String())
	}
	for _, ip := range t.IPAddresses {
		out.IpSans = append(out.IpSans, ip.String())
	}
	for _, u := range t.ExtKeyUsage {
		out.ExtendedKeyUsages = append(out.ExtendedKeyUsages, u.OID().String())
	}
	if can.Extensions {
		for _, e := range t.ExtraExtensions {
			out.Extensions = append(out.Extensions, &cav1.CertificateExtension{Id: e.Id.String(), Critical: e.Critical, Value: e.Value})
		}
	}
	if can.Token {
		out.Token = r.Token
	}
	return out, nil
}

// authorities is what a server announces, with its certificates parsed.
type authorities struct {
	roots, intermediates []*x509.Certificate
	crls                 [][]byte
	// lacks names the capabilities that the configuration says and the server does not announce, or the other way
	// round.
	lacks string
	// leftOut says why a list of revoked certificates was left out.
	leftOut error
}

// maxCRLs counts lists of revoked certificates.
const maxCRLs = 16

// parse reads an announcement.
func parse(a *cav1.WatchAuthoritiesResponse, can signer.Capabilities) (*authorities, error) {
	roots, err := upstream.Roots(a.GetRootCertificates()...)
	if err != nil {
		return nil, fmt.Errorf("root_certificates: %w", err)
	}
	intermediates, err := upstream.Intermediates(a.GetIntermediateCertificates()...)
	if err != nil {
		return nil, fmt.Errorf("intermediate_certificates: %w", err)
	}
	out := &authorities{roots: roots, intermediates: intermediates, lacks: lacking(a.GetCapabilities(), can)}
	lists := a.GetCertificateRevocationLists()
	if size := len(slices.Concat(lists...)); len(lists) > maxCRLs || size > upstream.MaxCRLBytes {
		return nil, fmt.Errorf("certificate_revocation_lists: %d lists of %d bytes, wanted at most %d of %d bytes", len(lists), size, maxCRLs,
			upstream.MaxCRLBytes)
	}
	for i, der := range lists {
		if err := upstream.VerifyCRL(der, slices.Concat(roots, intermediates)); err != nil {
			out.leftOut = errors.Join(out.leftOut, fmt.Errorf("certificate_revocation_lists: entry %d: %w", i+1, err))
			continue
		}
		out.crls = append(out.crls, der)
	}
	return out, nil
}

// lacking names the capabilities that the server announces otherwise than the configuration says, to the harm of one of
// them; empty if there are none. A server that announces nothing has what the configuration says.
func lacking(a *cav1.SignerCapabilities, can signer.Capabilities) string {
	if a == nil {
		return ""
	}
	announced := map[string]bool{
		extensions: a.GetExtensions() || !can.Extensions, namesBesideCSR: a.GetNamesBesideCsr() || !can.NamesBesideCSR,
		validity: a.GetValidity() || !can.Validity, revocation: a.GetRevocation() || !can.Revocation,
		needsToken: !a.GetNeedsToken() || can.Token,
	}
	return strings.Join(lists.Filter(words, func(word string) bool { return !announced[word] }), ", ")
}
