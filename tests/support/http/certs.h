/* tests/support/http/certs.h - certificates for tests: made here and now, by GnuTLS, valid for a day.
 *
 * In dir, NAME.pem and NAME.key (mode 0600) of each:
 *   ca          the CA of all that follows but "stranger" and "other-ca"
 *   server      for localhost and 127.0.0.1; CN=server
 *   renewed     like server; CN=renewed
 *   elsewhere   for elsewhere.example only
 *   client      CN=alice,O=Tollgate, for clients
 *   expired     like client, and over since an hour
 *   misused     a server's certificate, shown by a client
 *   other-ca    another CA
 *   stranger    like client, by the other CA */
#ifndef TOLLGATE_TESTS_CERTS_H
#define TOLLGATE_TESTS_CERTS_H

void certs_write(const char *dir);

#endif
