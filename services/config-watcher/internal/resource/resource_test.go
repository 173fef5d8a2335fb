package resource

import (
	"testing"

	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// TestEndpointSetIsKeptEncoded: a subscriber cannot tell that the body was kept encoded, and Decoded shows what it
// gets.
func TestEndpointSetIsKeptEncoded(t *testing.T) {
	set := &configv1.EndpointSet{Hostname: "a.example", Port: 80, Endpoints: []*configv1.Endpoint{{Address: "10.1.0.1", Port: 8080}}}
	r, err := New(Key{Kind: KindEndpointSet, Namespace: "apps", Name: "a.example:80/c"}, set)
	if err != nil {
		t.Fatal(err)
	}
	if r.GetBody() != nil {
		t.Error("it is decoded")
	}
	plain := &configv1.Resource{Key: r.GetKey(), Hash: r.GetHash(), Body: &configv1.Resource_EndpointSet{EndpointSet: set}}
	if proto.Size(r) != proto.Size(plain) {
		t.Errorf("%d bytes on the wire, %d when the body is in its field", proto.Size(r), proto.Size(plain))
	}
	got, err := Decoded(r)
	if err != nil || !proto.Equal(got, plain) {
		t.Errorf("subscribers get %v, want %v (%v)", got, plain, err)
	}
	if again, err := Decoded(got); again != got || err != nil {
		t.Errorf("what is decoded became %v (%v)", again, err)
	}
}
