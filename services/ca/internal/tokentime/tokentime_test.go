package tokentime

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"
)

func TestOfReadsTheExtension(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 999, time.FixedZone("east", 3600))
	whole := at.Truncate(time.Second)
	good, err := Extension(at)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		extensions []pkix.Extension
		want       time.Time
	}{
		"with the extension":    {[]pkix.Extension{{Id: []int{1, 2, 3}}, good}, whole},
		"of an earlier version": {nil, whole.Add(time.Hour)},
		"empty":                 {[]pkix.Extension{{Id: OID}}, time.Time{}},
		"of another type":       {[]pkix.Extension{{Id: OID, Value: []byte{0x05, 0x00}}}, time.Time{}},
		"with more behind": {[]pkix.Extension{{Id: OID, Value: append(good.Value[:len(good.Value):len(good.Value)], 0x05, 0x00)}},
			time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Of(&x509.Certificate{Extensions: tc.extensions, NotBefore: whole.Add(time.Hour)})
			if !got.Equal(tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
