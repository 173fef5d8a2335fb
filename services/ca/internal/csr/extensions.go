package csr

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/netip"
	"slices"

	"fairlead.dev/services/ca/internal/rejection"
)

// Names are subject alternative names (RFC 5280, 4.2.1.6), each exactly as the request spells it.
type Names struct {
	URIs, DNS, Emails []string
	IPs               []netip.Addr
}

// Empty reports whether there are no names.
func (n Names) Empty() bool { return len(n.URIs)+len(n.DNS)+len(n.Emails)+len(n.IPs) == 0 }

var (
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}

	oidServerAuth = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
	oidClientAuth = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 2}
)

// Bits of KeyUsage (RFC 5280, 4.2.1.3) that only a certificate authority has.
const (
	bitKeyCertSign = 5
	bitCRLSign     = 6
)

// checkExtensions accepts the extensions that common tools write into a workload's request and rejects the rest. Each
// may occur once, because readers differ in whether the first or the last of two counts.
func checkExtensions(extensions []pkix.Extension) (Names, error) {
	var names Names
	var seen []asn1.ObjectIdentifier
	for _, e := range extensions {
		if slices.ContainsFunc(seen, e.Id.Equal) {
			return Names{}, rejection.New(rejection.Invalid, rejection.CSRExtension, "csr has extension %s twice", e.Id)
		}
		seen = append(seen, e.Id)
		var err error
		switch {
		case e.Id.Equal(oidSubjectAltName):
			names, err = parseNames(e.Value)
		case e.Id.Equal(oidBasicConstraints):
			err = checkBasicConstraints(e.Value)
		case e.Id.Equal(oidKeyUsage):
			err = checkKeyUsage(e.Value)
		case e.Id.Equal(oidExtKeyUsage):
			err = checkExtKeyUsage(e.Value)
		default:
			err = rejection.New(rejection.Invalid, rejection.CSRExtension,
				"csr has extension %s, which workload certificates do not have; remove it", e.Id)
		}
		if err != nil {
			return Names{}, err
		}
	}
	return names, nil
}

// parseNames reads every GeneralName. crypto/x509 skips the kinds it does not know; here an unknown kind is an error.
func parseNames(value []byte) (Names, error) {
	var raw []asn1.RawValue
	if rest, err := asn1.Unmarshal(value, &raw); err != nil || len(rest) > 0 {
		return Names{}, malformed("subject alternative names")
	}
	var names Names
	for _, r := range raw {
		if r.Class != asn1.ClassContextSpecific {
			return Names{}, malformed("subject alternative names")
		}
		switch r.Tag {
		case 1:
			names.Emails = append(names.Emails, string(r.Bytes))
		case 2:
			names.DNS = append(names.DNS, string(r.Bytes))
		case 6:
			names.URIs = append(names.URIs, string(r.Bytes))
		case 7:
			ip, ok := netip.AddrFromSlice(r.Bytes)
			if !ok {
				return Names{}, malformed("IP address among its subject alternative names")
			}
			names.IPs = append(names.IPs, ip)
		default:
			return Names{}, rejection.New(rejection.Invalid, rejection.CSRNames,
				"csr has a subject alternative name of kind %d; only one URI is accepted", r.Tag)
		}
	}
	return names, nil
}

func checkBasicConstraints(value []byte) error {
	var constraints struct {
		IsCA       bool `asn1:"optional"`
		MaxPathLen int  `asn1:"optional,default:-1"`
	}
	if rest, err := asn1.Unmarshal(value, &constraints); err != nil || len(rest) > 0 {
		return malformed("basic constraints")
	}
	if constraints.IsCA || constraints.MaxPathLen >= 0 {
		return rejection.New(rejection.Invalid, rejection.CSRAuthority,
			"csr asks for a certificate authority (CA:TRUE or a path length); workloads get leaf certificates only")
	}
	return nil
}

func checkKeyUsage(value []byte) error {
	var usage asn1.BitString
	if rest, err := asn1.Unmarshal(value, &usage); err != nil || len(rest) > 0 {
		return malformed("key usage")
	}
	if usage.At(bitKeyCertSign) != 0 || usage.At(bitCRLSign) != 0 {
		return rejection.New(rejection.Invalid, rejection.CSRAuthority,
			"csr asks for the key usage of a certificate authority (keyCertSign or cRLSign); workloads get leaf certificates only")
	}
	return nil
}

func checkExtKeyUsage(value []byte) error {
	var usages []asn1.ObjectIdentifier
	if rest, err := asn1.Unmarshal(value, &usages); err != nil || len(rest) > 0 {
		return malformed("extended key usage")
	}
	for _, u := range usages {
		if !u.Equal(oidServerAuth) && !u.Equal(oidClientAuth) {
			return rejection.New(rejection.Invalid, rejection.CSRExtension,
				"csr asks for extended key usage %s; workload certificates are for TLS servers and clients only", u)
		}
	}
	return nil
}

func malformed(what string) error {
	return rejection.New(rejection.Invalid, rejection.CSRMalformed, "csr has malformed %s", what)
}
