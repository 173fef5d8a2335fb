package tokentime

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"testing"
	"time"
)

func TestOfReadsTheExtension(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 999, time.FixedZone("east", 3600))
	whole := at.Truncate(time.Second)
	good, err := Extension(at, "")
	if err != nil {
		t.Fatal(err)
	}
	east, err := Extension(at, "east")
	if err != nil {
		t.Fatal(err)
	}
	nameless, err := asn1.Marshal(foreign{At: whole.UTC()})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		extensions []pkix.Extension
		want       time.Time
		cluster    string
	}{
		"with the extension":             {[]pkix.Extension{{Id: []int{1, 2, 3}}, good}, whole, ""},
		"of a remote cluster":            {[]pkix.Extension{{Id: []int{1, 2, 3}}, east}, whole, "east"},
		"of a cluster without a name":    {[]pkix.Extension{{Id: OID, Value: nameless}}, time.Time{}, ""},
		"of a cluster, with more behind": {[]pkix.Extension{{Id: OID, Value: append(slices.Clip(east.Value), 0x05, 0x00)}}, time.Time{}, ""},
		"of an earlier version":          {nil, whole.Add(time.Hour), ""},
		"empty":                          {[]pkix.Extension{{Id: OID}}, time.Time{}, ""},
		"of another type":                {[]pkix.Extension{{Id: OID, Value: []byte{0x05, 0x00}}}, time.Time{}, ""},
		"with more behind": {[]pkix.Extension{{Id: OID, Value: append(good.Value[:len(good.Value):len(good.Value)], 0x05, 0x00)}},
			time.Time{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cert := &x509.Certificate{Extensions: tc.extensions, NotBefore: whole.Add(time.Hour)}
			got, cluster := Of(cert), Cluster(cert)
			if !got.Equal(tc.want) || cluster != tc.cluster {
				t.Errorf("got %s of %q, want %s of %q", got, cluster, tc.want, tc.cluster)
			}
		})
	}
}
