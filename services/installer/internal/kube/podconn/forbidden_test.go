package podconn

import "testing"

func TestForbiddenIsTheAPIServersSentence(t *testing.T) {
	const want = `pods "web-1" is forbidden: User "jo" cannot create resource "pods/portforward" in API group "" in the namespace "shop"`
	for _, text := range []string{
		want,
		"error upgrading connection: " + want,
		`unable to upgrade connection: {"message":"pods \"web-1\" is forbidden: User \"jo\" cannot create resource \"pods/portforward\" in API group \"\" in the namespace \"shop\"\nmore"}`,
		`{"message":"pods \"web-1\" is forbidden: User \"jo\" cannot create resource \"pods/portforward\" in API group \"\" in the namespace \"shop\""}`,
		want + "\nunable to upgrade connection: " + want,
	} {
		if got := forbidden(text); got != want {
			t.Errorf("%s\nis %s\nwant %s", text, got, want)
		}
	}
}
