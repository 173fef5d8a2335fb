package books

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"strings"
)

//go:embed page.html
var pageSource string

//go:embed static
var staticFiles embed.FS

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"repeat": strings.Repeat,
	"rest":   func(stars int) int { return max(0, 5-stars) },
}).Parse(pageSource))

// sessionCookie holds the user's name, without a proof: it exists to route by user.
const sessionCookie = "bookinfo-user"

// maxUser bounds the length of a user's name.
const maxUser = 64

// static serves the style sheet.
func static() http.Handler {
	return http.FileServerFS(staticFiles)
}

// pageData is what page.html shows.
type pageData struct {
	User    string
	Book    Book
	Details *UpstreamError
	Reviews []Review
	Missing *UpstreamError
	Version string
	Pod     string
	Hops    []Hop
}

// page shows the first book. Its status is always 200; parts that are not available show an error in their place.
func (p productPage) page(w http.ResponseWriter, r *http.Request) {
	v := p.gather(r.Context(), r, stock[0].ID)
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, pageData{
		User:    r.Header.Get("End-User"),
		Book:    v.details.Book,
		Details: v.detailsErr,
		Reviews: v.reviews.Reviews,
		Missing: v.reviewsErr,
		Version: v.reviews.ServedBy.Version,
		Pod:     v.reviews.ServedBy.Pod,
		Hops:    v.hops,
	})
	if err != nil {
		p.Log.Error("cannot render the page", "error", err)
		p.fail(w, r, http.StatusInternalServerError, "the page cannot be shown")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'")
	_, _ = out.WriteTo(w)
}

// asUser replaces the end-user header of a browser's request by the name of the user who signed in, for the mesh's
// rules.
func asUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := r.Cookie(sessionCookie); err == nil && validUser(c.Value) {
			r.Header.Set("End-User", c.Value)
		}
		next.ServeHTTP(w, r)
	})
}

func login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	name := strings.TrimSpace(r.PostFormValue("username"))
	if !validUser(name) {
		http.Error(w, "a user name has 1 to 64 letters, digits, dots, dashes or underscores", http.StatusBadRequest)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Value: name, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/productpage", http.StatusSeeOther)
}

func logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/productpage", http.StatusSeeOther)
}

// validUser reports whether a name may stand in a cookie and in a header.
func validUser(name string) bool {
	if name == "" || len(name) > maxUser {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}
