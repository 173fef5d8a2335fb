package cav1_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func signRequest(t testing.TB) *cav1.SignRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return &cav1.SignRequest{
		PublicKey: der, UriSans: []string{"spiffe://cluster.local/ns/shop/sa/web"}, DnsSans: []string{"web.shop.svc"},
		IpSans: []string{"10.0.0.1", "fd00::1"}, Ttl: durationpb.New(time.Hour),
		NotBefore: timestamppb.New(now.Add(-time.Minute)), NotAfter: timestamppb.New(now.Add(30 * time.Minute)), KeyUsages: 5,
		ExtendedKeyUsages: []string{"1.3.6.1.5.5.7.3.2"},
		Extensions:        []*cav1.CertificateExtension{{Id: "1.3.6.1.3.1018493141.1", Value: []byte{5, 0}}},
	}
}

// issued signs a template by itself, and reads it back.
func issued(t testing.TB, template *x509.Certificate) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent := &x509.Certificate{IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, template.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTemplate(t *testing.T) {
	r := signRequest(t)
	template, err := r.Template(now)
	if err != nil {
		t.Fatal(err)
	}
	c := issued(t, template)
	if len(c.URIs) != 1 || c.URIs[0].String() != r.GetUriSans()[0] || !slices.Equal(c.DNSNames, r.GetDnsSans()) || len(c.IPAddresses) != 2 ||
		c.IPAddresses[1].String() != "fd00::1" || !c.NotBefore.Equal(r.GetNotBefore().AsTime()) || !c.NotAfter.Equal(r.GetNotAfter().AsTime()) ||
		c.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment || len(c.ExtKeyUsage) != 1 ||
		c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || len(c.UnknownExtKeyUsage) > 0 || c.IsCA {
		t.Errorf("got %+v", c)
	}
	last := c.Extensions[len(c.Extensions)-1]
	if last.Id.String() != "1.3.6.1.3.1018493141.1" || last.Critical || string(last.Value) != "\x05\x00" {
		t.Errorf("extension %+v", last)
	}
}

// TestTemplateOfAnOlderCA: one that knows neither times nor usages.
func TestTemplateOfAnOlderCA(t *testing.T) {
	full := signRequest(t)
	template, err := (&cav1.SignRequest{PublicKey: full.GetPublicKey(), UriSans: full.GetUriSans(), Ttl: full.GetTtl()}).Template(now)
	if err != nil {
		t.Fatal(err)
	}
	c := issued(t, template)
	if !c.NotBefore.Equal(now) || !c.NotAfter.Equal(now.Add(time.Hour)) || c.KeyUsage != x509.KeyUsageDigitalSignature ||
		!slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}) {
		t.Errorf("got %+v", c)
	}
}

func TestTemplateRefuses(t *testing.T) {
	for says, change := range map[string]func(*cav1.SignRequest){
		"public_key: is empty":      func(r *cav1.SignRequest) { r.PublicKey = nil },
		"public_key: asn1":          func(r *cav1.SignRequest) { r.PublicKey = []byte{1} },
		"uri_sans: is empty":        func(r *cav1.SignRequest) { r.UriSans = nil },
		"uri_sans: has 2 URIs":      func(r *cav1.SignRequest) { r.UriSans = append(r.UriSans, r.UriSans[0]) },
		`uri_sans: ":"`:             func(r *cav1.SignRequest) { r.UriSans = []string{":"} },
		`uri_sans: "web"`:           func(r *cav1.SignRequest) { r.UriSans = []string{"web"} },
		`ip_sans: "web"`:            func(r *cav1.SignRequest) { r.IpSans = []string{"web"} },
		"is_ca: is set":             func(r *cav1.SignRequest) { r.IsCa = true },
		"key_usages: 0x20":          func(r *cav1.SignRequest) { r.KeyUsages = 1 << 5 },
		"key_usages: 0x201":         func(r *cav1.SignRequest) { r.KeyUsages = 1<<9 | 1 },
		"ttl: must be positive":     func(r *cav1.SignRequest) { r.Ttl = nil },
		"compare the clocks":        func(r *cav1.SignRequest) { r.NotAfter = timestamppb.New(now) },
		`extended_key_usages: "x"`:  func(r *cav1.SignRequest) { r.ExtendedKeyUsages = []string{"x"} },
		"too large":                 func(r *cav1.SignRequest) { r.Extensions[0].Id = "2.25.340282366920938463463374607431768211455" },
		"extensions: 2.5.29.17":     func(r *cav1.SignRequest) { r.Extensions[0].Id = "2.5.29.17" },
		"or is there twice":         func(r *cav1.SignRequest) { r.Extensions = append(r.Extensions, r.Extensions[0]) },
		`extensions: "" is no obje`: func(r *cav1.SignRequest) { r.Extensions[0].Id = "" },
	} {
		r := signRequest(t)
		change(r)
		if _, err := r.Template(now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// FuzzTemplate: no request makes a server panic, or sign an authority.
func FuzzTemplate(f *testing.F) {
	raw, err := proto.Marshal(signRequest(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r cav1.SignRequest
		if proto.Unmarshal(raw, &r) != nil {
			return
		}
		template, err := r.Template(now)
		if err != nil {
			return
		}
		if template.IsCA || template.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 || len(template.URIs) == 0 {
			t.Errorf("%+v", template)
		}
	})
}
