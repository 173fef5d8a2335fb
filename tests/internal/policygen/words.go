package policygen

import (
	"math/rand/v2"
)

// drawer draws from what both policies and requests are made of, so that they meet.
type drawer struct{ *rand.Rand }

func newDrawer(seed, n uint64) drawer {
	return drawer{rand.New(rand.NewPCG(seed, n))} //nolint:gosec // a test's draw
}

func (d drawer) one(of int) bool { return d.IntN(of) == 0 }

func (d drawer) word(words []string) string { return words[d.IntN(len(words))] }

// some draws one to most words, none twice.
func (d drawer) some(most int, words []string) []string {
	order := d.Perm(len(words))
	out := make([]string, 0, most)
	for _, i := range order[:1+d.IntN(min(most, len(words)))] {
		out = append(out, words[i])
	}
	return out
}

// TrustDomain is the mesh's in drawn sets, OldDomain an alias of it, ForeignDomain neither.
const (
	TrustDomain   = "cluster.local"
	OldDomain     = "old.local"
	ForeignDomain = "partner.example"
)

// Providers are the names of CUSTOM providers that drawn policies use. One name begins another; Missing is not in the
// mesh's configuration.
const (
	GRPCProvider   = "ext-grpc"
	HTTPProvider   = "ext-http"
	LongerProvider = "ext-grpc-two"
	Missing        = "ext-missing"
)

// Values that policies name, and that callers and requests have. "own" stands for the namespace of the set.
var (
	callers = []string{
		"cluster.local/ns/shop/sa/web", "cluster.local/ns/shop/sa/api", "cluster.local/ns/shop-dev/sa/web", "cluster.local/ns/bank/sa/admin",
		"cluster.local/ns/prod-shop/sa/web-v2", "old.local/ns/shop/sa/web", "old.local/ns/bank/sa/admin", "partner.example/ns/shop/sa/web",
		"partner.example/ns/edge/sa/gateway", "cluster.local/ns/own/sa/web", "cluster.local/ns/own/sa/default", "cluster.local.evil/ns/shop/sa/web",
		"cluster.local/ns/shop/sa/web/extra", "cluster.local/region/eu/ns/shop/sa/web",
	}
	principals = []string{
		"*", "cluster.local/ns/shop/sa/web", "cluster.local/ns/shop/sa/api", "cluster.local/ns/bank/sa/admin", "old.local/ns/shop/sa/web",
		"partner.example/ns/shop/sa/web", "*/ns/shop/sa/web", "*/sa/web", "cluster.local/ns/shop/*", "cluster.local/*", "old.local/*",
		"partner.example/ns/edge/*", "*/ns/own/sa/default", "cluster.local/ns/sh*", "spiffe://cluster.local/ns/shop/sa/web", "*.local/ns/shop/sa/web",
	}
	namespaces      = []string{"*", "shop", "bank", "edge", "shop*", "*shop", "sh*p", "own", "prod-shop", "*-dev", "shop.dev"}
	serviceAccounts = []string{"shop/web", "shop/api", "bank/admin", "web", "default", "edge/gateway", "shop/we"}
	trustDomains    = []string{"cluster.local", "old.local", "partner.example", "*", "*.local", "partner*", "cluster.*"}

	sources      = []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.1.5"}
	sourceBlocks = []string{"127.0.0.2", "127.0.0.3", "127.0.0.2/31", "127.0.0.0/24", "127.0.0.0/8", "10.0.0.0/8", "127.0.1.0/24", "::1",
		"2001:db8::/32"}
	remotes      = []string{"203.0.113.7", "203.0.113.9", "198.51.100.20", "192.0.2.1", "10.1.2.3"}
	remoteBlocks = []string{"203.0.113.7", "203.0.113.0/24", "203.0.113.8/29", "198.51.100.0/24", "192.0.2.1", "10.0.0.0/8", "0.0.0.0/0",
		"127.0.0.0/8", "2001:db8::/32"}

	methods        = []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"}
	methodPatterns = []string{"GET", "POST", "PUT", "DELETE", "*", "P*", "*T", "get", "HEAD", "OPTIONS", "P*T"}

	paths = []string{
		"/", "/admin", "/admin/", "/admin/users", "/ADMIN", "/public/index.html", "/publicity", "/api/v1/items", "/api/v2/items", "/api/v1/items/7",
		"/api//items", "/files/a.txt", "/files/a/b/c.txt", "/files/", "/files", "/info", "/api/info", "/a%2fb", "/a%20b", "/adm%69n",
		"/admin?x=1", "/public?next=/admin", "/admin;v=1", "/x/../admin", "/./admin", "//admin", "/api/v1/items?token=1", "/a.b", "/aXb", "/*",
		"/api/v1/items/", "/api/a[0]/items", "/files/a[0]", `/files/"a"/b`, "/files/[a]/b|c", "/{*}/info",
	}
	pathPatterns = []string{
		"*", "/", "/*", "/admin", "/admin*", "/admin/*", "/public*", "/public/index.html", "*/info", "*.txt", "*/admin", "/api/v1/items", "/a.b",
		"/api/{*}/items", "/api/{*}/items/{*}", "/files/{**}", "/files/{**}/", "/{*}", "/{**}", "/api/{*}/{**}", "/{*}/info", "/ADMIN", "/a/*/b",
		"/a%2fb", "/a b", "/files/*", "/api/v*", "admin",
	}

	hosts = []string{
		"shop.example.com", "SHOP.example.com", "shop.example.com:8080", "shop.example.com:80", "bank.example.com", "example.com", "shop.test",
		"Shop.Test:8080", "10.64.0.1", "10.64.0.1:8080", "shop", "shop.example.com.", "[2001:db8::1]:8080", "evil-shop.example.com",
	}
	hostPatterns = []string{
		"*", "shop.example.com", "SHOP.EXAMPLE.COM", "shop.example.com:8080", "*.example.com", "*.example.com:8080", "shop.*", "shop*", "bank.example.com",
		"example.com", "shop.test", "*.test:8080", "10.64.0.1", "shop", "*shop.example.com",
	}

	httpPorts    = []int{8080, 8081, 8443}
	tcpPorts     = []int{9000, 9001, 9443}
	portPatterns = []string{"8080", "8081", "8443", "9000", "9001", "9443", "80"}

	names       = []string{"shop.example.com", "bank.example.com", "outbound_.8080_._.shop.shop.svc.cluster.local", ""}
	sniPatterns = []string{"*", "shop.example.com", "*.example.com", "shop.*", "outbound_*", "SHOP.example.com"}

	headerNames  = []string{"x-user", "X-Role", "x-empty", "user-agent", "cookie"}
	headerValues = map[string][]string{
		"x-user": {"alice", "bob", "Alice", "alice,bob", "alice, bob", "", "al"}, "X-Role": {"admin", "user", "admin-eu", "eu-admin", "*"},
		"x-empty": {"", " "}, "user-agent": {"curl/8", "curl/7.1", "Mozilla"}, "cookie": {"a=1", "a=1; b=2", "session=x"},
	}
	headerPatterns = map[string][]string{
		"x-user": {"alice", "bob", "al*", "*e", "*", "alice,bob"}, "X-Role": {"admin", "admin*", "*admin", "user", "*"},
		"x-empty": {"*", "x"}, "user-agent": {"curl/*", "Mozilla", "*"}, "cookie": {"a=1", "*", "*b=2", "session=*"},
	}

	issuers           = []string{"https://issuer-a.example", "https://issuer-b.example/realm", "issuer-c"}
	subjects          = []string{"alice", "bob", "svc/one", "alice@example.com"}
	requestPrincipals = []string{
		"*", "https://issuer-a.example/alice", "https://issuer-a.example/*", "https://issuer-b.example/realm/alice", "*/alice", "*/*", "issuer-c/bob",
		"*alice", "issuer-c*", "issuer-c/*", "https://issuer-b.example/realm/svc/one", "*example/alice", "https://issuer-a.example/al*", "alice",
	}
	audiences        = []string{"web", "api", "api-v2", "mobile"}
	audiencePatterns = []string{"web", "api", "api*", "*-v2", "*", "mobile"}
	presenters       = []string{"app", "cli", "app-2"}
	presenterPattern = []string{"app", "app*", "*", "cli"}
	claimNames       = []string{"group", "realm][roles", "scope", "email", "level", "admin", "nested][a][b", "iss", "sub", "aud", "custom"}
	claimPatterns    = map[string][]string{
		"group": {"dev", "ops", "dev*", "*", "*s"}, "realm][roles": {"reader", "writer", "*", "read*"},
		"scope": {"read", "write", "*", "read write"},
		"email": {"alice@example.com", "*@example.com", "*"}, "level": {"5", "*"}, "admin": {"true", "*"}, "nested][a][b": {"deep", "*"},
		"iss": {"issuer-c", "https://*", "*"}, "sub": {"alice", "*"}, "aud": {"web", "*"}, "custom": {"one", "two", "*"},
	}
)
